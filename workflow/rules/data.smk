"""Pinned sources, and the prepared data of each task."""


rule fetch:
    input:
        code=PLAN.code("fetch"),
    output:
        record="results/sources/{source}.json",
    log:
        "logs/sources/{source}.log",
    benchmark:
        "benchmarks/sources/{source}.jsonl"
    resources:
        mem_mb=PLAN.resources("data").mem_mb,
        runtime=PLAN.resources("data").runtime,
    params:
        source=lambda w: PLAN.params.sources[w.source].model_dump_json(),
    shell:
        "python -m flexround.stages.fetch --source {wildcards.source} --out results/sources"
        " > {log} 2>&1"


rule data:
    input:
        sources=get_data_sources,
        code=lambda w: PLAN.code("data", PLAN.scale.tasks[w.task].module),
    output:
        manifest=layout.data_dir("{scale}", "{task}") + "/manifest.json",
    log:
        "logs/{scale}/data/{task}.log",
    benchmark:
        "benchmarks/{scale}/data/{task}.jsonl"
    threads: PLAN.resources("data").threads
    resources:
        mem_mb=PLAN.resources("data").mem_mb,
        runtime=PLAN.resources("data").runtime,
    params:
        options=lambda w: PLAN.scale.tasks[w.task].model_dump_json(),
        scale=SCALE_FILE,
    shell:
        "python -m flexround.stages.data --scale {params.scale} --task {wildcards.task}"
        " --sources results/sources --out $(dirname {output.manifest}) > {log} 2>&1"
