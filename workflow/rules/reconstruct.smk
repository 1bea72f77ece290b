"""Quantize a run block by block; an interrupted job continues from .state/ at its next block."""


rule reconstruct:
    input:
        unpack(lambda w: get_inputs("reconstruct", get_run(w))),
    output:
        directory(layout.quantized_dir(ANY)),
    log:
        text="logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.log",
        usage="logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.usage.json",
    wildcard_constraints:
        recipe=PLAN.pattern(PLAN.params.recipes.made("setting")),
    threads: PLAN.resources("reconstruct").threads
    resources:
        gpu=PLAN.gpu("reconstruct"),
        jobs_per_gpu=PLAN.jobs_per_gpu,
        mem_mb=get_resource("reconstruct", "mem_mb"),
        runtime=get_resource("reconstruct", "runtime"),
        gpu_mb=get_resource("reconstruct", "gpu_mb"),
    shell:
        "python -m flexround.jobs reconstruct {input.job} --threads {threads} --gpus {resources.gpu}"
        " --jobs-per-gpu {resources.jobs_per_gpu} --usage {log.usage} --cache-mb $(({resources.mem_mb} / 2)) > {log.text} 2>&1"


rule select:
    input:
        unpack(lambda w: get_inputs("select", get_run(w))),
    output:
        directory(layout.quantized_dir(ANY)),
    log:
        text="logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.log",
        usage="logs/{scale}/quantized/{task}/{checkpoint}/{recipe}/seed{seed}.usage.json",
    wildcard_constraints:
        recipe=PLAN.pattern(PLAN.params.recipes.made("select")),
    threads: PLAN.resources("evaluate").threads
    resources:
        gpu=PLAN.gpu("evaluate"),
        jobs_per_gpu=PLAN.jobs_per_gpu,
        mem_mb=get_resource("evaluate", "mem_mb"),
        runtime=get_resource("evaluate", "runtime"),
        gpu_mb=get_resource("evaluate", "gpu_mb"),
    shell:
        "python -m flexround.jobs select {input.job} --threads {threads} --gpus {resources.gpu}"
        " --jobs-per-gpu {resources.jobs_per_gpu} --usage {log.usage} > {log.text} 2>&1"
