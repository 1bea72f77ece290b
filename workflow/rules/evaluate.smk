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
        **get_gpu_resources("evaluate"),
    shell:
        "python -m flexround.jobs evaluate {input.job} --threads {threads} --gpus {resources.gpu}"
        " --jobs-per-gpu {resources.jobs_per_gpu} --usage {log.usage} > {log.text} 2>&1"
