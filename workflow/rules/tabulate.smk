"""Tables and figures of a scale, and copies of the configured scale's files in results/."""


rule tabulate:
    input:
        lambda w: get_inputs("tabulate", int(w.table)),
    output:
        csv=report(
            f"results/{{scale}}/{SERIES}{{table}}.csv",
            caption="../report/table.rst",
            category="Tables",
            labels=get_table_labels("numbers"),
        ),
        tex=f"results/{{scale}}/{SERIES}{{table}}.tex",
        html=report(
            f"results/{{scale}}/{SERIES}{{table}}.html",
            caption="../report/table.rst",
            category="Tables",
            labels=get_table_labels("page"),
        ),
    log:
        text=f"logs/{{scale}}/{SERIES}{{table}}.log",
        usage=f"logs/{{scale}}/{SERIES}{{table}}.usage.json",
    resources:
        **get_resources("tabulate"),
    params:
        **get_params(f"results/{{scale}}/{SERIES}{{table}}.csv"),
    shell:
        "python -m flexround.jobs tabulate {params.job} --usage {log.usage} 2> {log.text}"


rule figure:
    input:
        lambda w: get_inputs("figure", int(w.figure)),
    output:
        pdf="results/{scale}/figure{figure}.pdf",
        png=report(
            "results/{scale}/figure{figure}.png",
            caption="../report/figure.rst",
            category="Figures",
            labels=get_figure_labels,
        ),
    log:
        text="logs/{scale}/figure{figure}.log",
        usage="logs/{scale}/figure{figure}.usage.json",
    resources:
        **get_resources("tabulate"),
    params:
        **get_params("results/{scale}/figure{figure}.pdf"),
    shell:
        "python -m flexround.jobs figure {params.job} --usage {log.usage} > {log.text} 2>&1"


rule summary:
    input:
        lambda w: get_inputs("summary"),
    output:
        json="results/{scale}/metrics.json",
    log:
        text="logs/{scale}/summary.log",
        usage="logs/{scale}/summary.usage.json",
    resources:
        **get_resources("tabulate"),
    params:
        **get_params("results/{scale}/metrics.json"),
    shell:
        "python -m flexround.jobs summary {params.job} --usage {log.usage} > {log.text} 2>&1"


rule ranking:
    input:
        lambda w: get_inputs("ranking"),
    output:
        csv="results/{scale}/ranking.csv",
    log:
        text="logs/{scale}/ranking.log",
        usage="logs/{scale}/ranking.usage.json",
    resources:
        **get_resources("tabulate"),
    params:
        **get_params("results/{scale}/ranking.csv"),
    shell:
        "python -m flexround.jobs ranking {params.job} --usage {log.usage} > {log.text} 2>&1"


rule claims:
    input:
        lambda w: get_inputs("claims"),
    output:
        claims=of_claims("claims.csv", caption="../report/claims.rst"),
        errata=of_claims("errata.csv", caption="../report/errata.rst"),
    log:
        text="logs/{scale}/claims.log",
        usage="logs/{scale}/claims.usage.json",
    resources:
        **get_resources("tabulate"),
    params:
        **get_params("results/{scale}/claims.csv"),
    shell:
        "python -m flexround.jobs claims {params.job} --usage {log.usage} 2> {log.text}"


# Targets such as `make results/table3.csv`: copies in results/ of the files from one job of the configured scale.
PUBLISHED = {
    "table": [f"{SERIES}{{table}}.{kind}" for kind in ("csv", "tex", "html")],
    "figure": ["figure{figure}.pdf", "figure{figure}.png"],
    "claims": ["claims.csv", "errata.csv"],
    "ranking": ["ranking.csv"],
    "report": ["report.html"],
    "paper": ["paper.pdf"],
}

for name, files in PUBLISHED.items():

    rule:
        name:
            f"publish_{name}"
        input:
            [f"results/{SCALE}/{file}" for file in files],
        output:
            [f"results/{file}" for file in files],
        log:
            f"logs/publish-{Path(files[0]).stem}.log",
        localrule: True
        resources:
            mem_mb=100,
            runtime=1,
        params:
            made_by=get_params(f"results/{SCALE}/{files[0]}")["made_by"],
            directory=lambda wildcards, output: Path(output[0]).parent,
        shell:
            "cp {input} {params.directory} 2> {log}"
