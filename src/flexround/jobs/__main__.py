"""Do one job: ``python -m flexround.jobs STAGE JOB.json``."""

from flexround.jobs import command

if __name__ == "__main__":
    command.main()
