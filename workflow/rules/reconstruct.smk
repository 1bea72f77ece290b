"""Quantize a run block by block; an interrupted job resumes from .state/ at its next block."""


rule reconstruct:
    input:
        lambda w: get_inputs("reconstruct", get_run(w)),
    output:
        directory(layout.quantized_dir(ANY)),
    log:
        text="logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.log",
        usage="logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.usage.json",
    wildcard_constraints:
        recipe=PLAN.pattern(PLAN.params.recipes.made("setting")),
    threads: PLAN.resources("reconstruct").threads
    resources:
        **get_gpu_resources("reconstruct"),
    params:
        **get_params(layout.quantized_dir(ANY)),
    shell:
        "python -m flexround.jobs reconstruct {params.job} --threads {threads} --gpus {resources.gpu}"
        " --jobs-per-gpu {resources.jobs_per_gpu} --usage {log.usage} > {log.text} 2>&1"


rule select:
    input:
        lambda w: get_inputs("select", get_run(w)),
    output:
        directory(layout.quantized_dir(ANY)),
    log:
        text="logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.log",
        usage="logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.usage.json",
    wildcard_constraints:
        recipe=PLAN.pattern(PLAN.params.recipes.made("select")),
    threads: PLAN.resources("evaluate").threads
    resources:
        **get_gpu_resources("evaluate"),
    params:
        **get_params(layout.quantized_dir(ANY)),
    shell:
        "python -m flexround.jobs select {params.job} --threads {threads} --gpus {resources.gpu}"
        " --jobs-per-gpu {resources.jobs_per_gpu} --usage {log.usage} > {log.text} 2>&1"
