"""One metrics.json per run, per-example scores beside it."""


rule evaluate:
    input:
        unpack(lambda w: get_inputs("evaluate", get_run(w))),
    output:
        metrics=layout.evaluated_files(ANY)[0],
        predictions=layout.evaluated_files(ANY)[1],
    log:
        text="logs/{scale}/evaluated/{task}/{checkpoint}/{recipe}/seed{seed}.log",
        usage="logs/{scale}/evaluated/{task}/{checkpoint}/{recipe}/seed{seed}.usage.json",
    threads: PLAN.resources("evaluate").threads
    resources:
        gpu=PLAN.gpu("evaluate"),
        jobs_per_gpu=PLAN.jobs_per_gpu,
        mem_mb=get_resource("evaluate", "mem_mb"),
        runtime=get_resource("evaluate", "runtime"),
        gpu_mb=get_resource("evaluate", "gpu_mb"),
    shell:
        "python -m flexround.jobs evaluate {input.job} --threads {threads} --gpus {resources.gpu}"
        " --jobs-per-gpu {resources.jobs_per_gpu} --usage {log.usage} > {log.text} 2>&1"
