"""Evaluations: one metrics.json per run, with per-example scores in a second file."""


rule evaluate:
    input:
        lambda w: get_inputs("evaluate", get_run(w)),
    output:
        metrics=layout.evaluated_files(ANY)[0],
        predictions=layout.evaluated_files(ANY)[1],
    log:
        text="logs/{scale}/evaluated/{task}/{checkpoint}/{recipe}/seed{seed}.log",
        usage="logs/{scale}/evaluated/{task}/{checkpoint}/{recipe}/seed{seed}.usage.json",
    threads: PLAN.resources("evaluate").threads
    resources:
        **get_gpu_resources("evaluate"),
    params:
        **get_params(layout.evaluated_dir(ANY)),
    shell:
        "python -m flexround.jobs evaluate {params.job} --threads {threads} --gpus {resources.gpu}"
        " --jobs-per-gpu {resources.jobs_per_gpu} --usage {log.usage} > {log.text} 2>&1"
