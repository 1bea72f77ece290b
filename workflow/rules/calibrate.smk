"""The calibration samples of each trial."""


rule calibrate:
    input:
        lambda w: get_inputs("calibrate", w.task, int(w.samples), int(w.seed)),
    output:
        directory(layout.calibration_dir("{scale}", "{task}", "{samples}", "{seed}")),
    log:
        text="logs/{scale}/calibration/{task}/n{samples}-seed{seed}.log",
        usage="logs/{scale}/calibration/{task}/n{samples}-seed{seed}.usage.json",
    threads: PLAN.resources("calibrate").threads
    resources:
        **get_resources("calibrate"),
    params:
        **get_params(layout.calibration_dir("{scale}", "{task}", "{samples}", "{seed}")),
    shell:
        "python -m flexround.jobs calibrate {params.job} --threads {threads} --usage {log.usage} > {log.text} 2>&1"
