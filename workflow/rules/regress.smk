"""The results that `make regress` compares with the reference."""


rule regress:
    input:
        get_regress_runs,
