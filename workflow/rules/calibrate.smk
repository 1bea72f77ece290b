"""The very samples a trial is calibrated on."""


rule calibrate:
    input:
        unpack(lambda w: get_inputs("calibrate", w.task, int(w.samples), int(w.seed))),
    output:
        directory(layout.calibration_dir("{scale}", "{task}", "{samples}", "{seed}")),
    log:
        text="logs/{scale}/calibration/{task}/n{samples}-seed{seed}.log",
        usage="logs/{scale}/calibration/{task}/n{samples}-seed{seed}.usage.json",
    threads: PLAN.resources("calibrate").threads
    resources:
        **get_resources("calibrate"),
    shell:
        "python -m flexround.jobs calibrate {input.job} --threads {threads} --usage {log.usage} > {log.text} 2>&1"
