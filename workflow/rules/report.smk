"""The whole scale as an HTML page and as a PDF. `make report` and `make paper` do the same with existing results."""


rule report:
    input:
        tables=expand(
            f"results/{{{{scale}}}}/{SERIES}{{table}}.csv",
            table=PLAN.complete_tables(),
        ),
        figures=expand(
            "results/{{scale}}/figure{figure}.png", figure=PLAN.complete_figures()
        ),
        claims=["results/{scale}/claims.csv"] if PLAN.scale.shows.claims else [],
        ranking="results/{scale}/ranking.csv",
    output:
        page="results/{scale}/report.html",
    log:
        "logs/{scale}/report.log",
    resources:
        **get_resources("tabulate"),
    params:
        code=lambda w: resolve.report(),
        scale=CONFIG.scale,
        own=["--own", CONFIG.own] if CONFIG.own else [],
    shell:
        "python -m flexround.tools.report --scale {params.scale:q} {params.own:q} --out {output.page} > {log} 2>&1"


rule paper:
    input:
        tables=expand(
            f"results/{{{{scale}}}}/{SERIES}{{table}}.tex",
            table=PLAN.complete_tables(),
        ),
        figures=expand(
            "results/{{scale}}/figure{figure}.pdf", figure=PLAN.complete_figures()
        ),
    output:
        pdf="results/{scale}/paper.pdf",
        tex="results/{scale}/paper.tex",
    log:
        "logs/{scale}/paper.log",
    resources:
        **get_resources("tabulate"),
    params:
        code=lambda w: resolve.report(),
        scale=CONFIG.scale,
    shell:
        "python -m flexround.tools.report --scale {params.scale:q} --out {output.pdf} > {log} 2>&1"
