"""The very samples a trial is calibrated on."""


rule calibrate:
    input:
        data=layout.data_dir("{scale}", "{task}") + "/manifest.json",
        code=lambda w: PLAN.code("calibrate", PLAN.scale.tasks[w.task].module),
    output:
        manifest=layout.calibration_dir("{scale}", "{task}", "{samples}", "{seed}")
        + "/manifest.json",
    log:
        "logs/{scale}/calibration/{task}/n{samples}-seed{seed}.log",
    benchmark:
        "benchmarks/{scale}/calibration/{task}/n{samples}-seed{seed}.jsonl"
    threads: PLAN.resources("calibrate").threads
    resources:
        mem_mb=PLAN.resources("calibrate").mem_mb,
        runtime=PLAN.resources("calibrate").runtime,
    params:
        options=lambda w: PLAN.scale.tasks[w.task].model_dump_json(),
        scale=SCALE_FILE,
    shell:
        "python -m flexround.stages.calibrate --scale {params.scale} --task {wildcards.task}"
        " --data $(dirname {input.data}) --samples {wildcards.samples} --seed {wildcards.seed}"
        " --out $(dirname {output.manifest}) > {log} 2>&1"
