"""Tables and figures of a scale, and the copies in results/ of the configured scale."""


rule tabulate:
    input:
        runs=get_table_runs,
        spec=lambda w: f"params/tables/table{int(w.table):02d}.yaml",
        published="params/published.csv",
        code=PLAN.code("tabulate"),
    output:
        csv="results/{scale}/table{table}.csv",
        tex="results/{scale}/table{table}.tex",
        html="results/{scale}/table{table}.html",
    log:
        "logs/{scale}/table{table}.log",
    benchmark:
        "benchmarks/{scale}/table{table}.jsonl"
    resources:
        mem_mb=PLAN.resources("tabulate").mem_mb,
        runtime=PLAN.resources("tabulate").runtime,
    params:
        seeds=PLAN.seeds,
        scale=SCALE_FILE,
        settings=lambda w: PLAN.table_settings(int(w.table)),
        launch=get_table_launcher,
    shell:
        "{params.launch} flexround.stages.tabulate --scale {params.scale} --table {wildcards.table}"
        " --seeds {params.seeds} --evaluated results --out $(dirname {output.csv}) 2> {log}"


rule figure:
    input:
        runs=get_figure_runs,
        spec="params/figures.yaml",
        published="params/published_figure7.csv",
        code=PLAN.code("figure"),
    output:
        pdf="results/{scale}/figure{figure}.pdf",
        png="results/{scale}/figure{figure}.png",
    log:
        "logs/{scale}/figure{figure}.log",
    benchmark:
        "benchmarks/{scale}/figure{figure}.jsonl"
    resources:
        mem_mb=PLAN.resources("tabulate").mem_mb,
        runtime=PLAN.resources("tabulate").runtime,
    params:
        settings=PLAN.scale.figures.model_dump_json(),
        scale=SCALE_FILE,
    shell:
        "python -m flexround.stages.figure --scale {params.scale} --figure {wildcards.figure}"
        " --out $(dirname {output.pdf}) > {log} 2>&1"


rule summary:
    input:
        tables=expand(
            "results/{{scale}}/table{table}.csv", table=PLAN.complete_tables()
        ),
        code=PLAN.code("summary"),
    output:
        json="results/{scale}/metrics.json",
    log:
        "logs/{scale}/summary.log",
    benchmark:
        "benchmarks/{scale}/summary.jsonl"
    resources:
        mem_mb=PLAN.resources("tabulate").mem_mb,
        runtime=PLAN.resources("tabulate").runtime,
    shell:
        "python -m flexround.stages.summary --tables {input.tables} --out {output.json} > {log} 2>&1"


rule publish_table:
    input:
        csv=f"results/{SCALE}/table{{table}}.csv",
        tex=f"results/{SCALE}/table{{table}}.tex",
        html=f"results/{SCALE}/table{{table}}.html",
    output:
        csv="results/table{table}.csv",
        tex="results/table{table}.tex",
        html="results/table{table}.html",
    log:
        "logs/publish-table{table}.log",
    resources:
        mem_mb=100,
        runtime=1,
    shell:
        "cp {input.csv} {input.tex} {input.html} results/ 2> {log}"


rule publish_figure:
    input:
        pdf=f"results/{SCALE}/figure{{figure}}.pdf",
        png=f"results/{SCALE}/figure{{figure}}.png",
    output:
        pdf="results/figure{figure}.pdf",
        png="results/figure{figure}.png",
    log:
        "logs/publish-figure{figure}.log",
    resources:
        mem_mb=100,
        runtime=1,
    shell:
        "cp {input.pdf} {input.png} results/ 2> {log}"


rule claims:
    input:
        runs=get_claim_runs,
        specs=expand("params/tables/table{table:02d}.yaml", table=PLAN.params.tables),
        figures="params/figures.yaml",
        claims="params/claims.yaml",
        published=["params/published.csv", "params/published_figure7.csv"],
        code=PLAN.code("claims"),
    output:
        claims="results/{scale}/claims.csv",
        errata="results/{scale}/errata.csv",
        html="results/{scale}/claims.html",
    log:
        "logs/{scale}/claims.log",
    benchmark:
        "benchmarks/{scale}/claims.jsonl"
    resources:
        mem_mb=PLAN.resources("tabulate").mem_mb,
        runtime=PLAN.resources("tabulate").runtime,
    params:
        seeds=PLAN.seeds,
        scale=SCALE_FILE,
        settings=PLAN.scale.figures.model_dump_json(),
    shell:
        "python -m flexround.stages.claims --scale {params.scale} --seeds {params.seeds}"
        " --evaluated results --out $(dirname {output.claims}) 2> {log}"


rule publish_claims:
    input:
        claims=f"results/{SCALE}/claims.csv",
        errata=f"results/{SCALE}/errata.csv",
        html=f"results/{SCALE}/claims.html",
    output:
        claims="results/claims.csv",
        errata="results/errata.csv",
        html="results/claims.html",
    log:
        "logs/publish-claims.log",
    resources:
        mem_mb=100,
        runtime=1,
    shell:
        "cp {input.claims} {input.errata} {input.html} results/ 2> {log}"
