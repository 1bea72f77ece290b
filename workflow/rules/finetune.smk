"""A task's full-precision networks: imported from a pinned source, pretrained here, or fine-tuned; and their gates."""


rule finetune:
    input:
        lambda w: get_inputs("finetune", w.task, w.checkpoint),
    output:
        directory(layout.checkpoint_dir("{scale}", "{task}", "{checkpoint}")),
    log:
        text="logs/{scale}/checkpoints/{task}/{checkpoint}.log",
        usage="logs/{scale}/checkpoints/{task}/{checkpoint}.usage.json",
    # Most other jobs wait for a network; late training would leave cores idle at the end.
    priority: 1
    threads: PLAN.resources("finetune").threads
    resources:
        **get_gpu_resources("finetune"),
    params:
        **get_params(layout.checkpoint_dir("{scale}", "{task}", "{checkpoint}")),
    shell:
        "python -m flexround.jobs finetune {params.job} --threads {threads} --gpus {resources.gpu}"
        " --jobs-per-gpu {resources.jobs_per_gpu} --usage {log.usage} > {log.text} 2>&1"


rule pretrain:
    input:
        [
            layout.checkpoint_dir(SCALE, task, checkpoint)
            for checkpoint, task in PLAN.pretrained().items()
        ],


# The gate depends on weights, data and bounds, and on no code: an edit of the evaluation requantizes no network.
rule gate:
    input:
        lambda w: get_inputs("gate", w.task, w.checkpoint),
    output:
        layout.gate_file("{scale}", "{task}", "{checkpoint}"),
    log:
        text="logs/{scale}/gates/{task}/{checkpoint}.log",
        usage="logs/{scale}/gates/{task}/{checkpoint}.usage.json",
    priority: 1
    threads: PLAN.resources("evaluate").threads
    resources:
        **get_gpu_resources("evaluate"),
    params:
        **get_params(layout.gate_file("{scale}", "{task}", "{checkpoint}")),
    shell:
        "python -m flexround.jobs gate {params.job} --threads {threads} --gpus {resources.gpu}"
        " --jobs-per-gpu {resources.jobs_per_gpu} --usage {log.usage} > {log.text} 2>&1"
