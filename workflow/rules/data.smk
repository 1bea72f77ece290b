"""Pinned sources, and each task's prepared data."""


rule fetch:
    input:
        lambda w: get_inputs("fetch", w.source),
    output:
        record=layout.source_file("{source}"),
    log:
        text="logs/sources/{source}.log",
        usage="logs/sources/{source}.usage.json",
    # The job itself retries broken downloads; a wrong hash stays wrong.
    retries: 0
    localrule: True
    resources:
        **get_resources("data"),
    params:
        **get_params(layout.source_file("{source}")),
    shell:
        "python -m flexround.jobs fetch {params.job} --usage {log.usage} > {log.text} 2>&1"


rule data:
    input:
        lambda w: get_inputs("data", w.task),
    output:
        directory(layout.data_dir("{scale}", "{task}")),
    log:
        text="logs/{scale}/data/{task}.log",
        usage="logs/{scale}/data/{task}.usage.json",
    threads: PLAN.resources("data").threads
    resources:
        **get_resources("data"),
    params:
        **get_params(layout.data_dir("{scale}", "{task}")),
    shell:
        "python -m flexround.jobs data {params.job} --threads {threads} --usage {log.usage} > {log.text} 2>&1"
