"""Tables and figures of a scale, and the copies in results/ of the configured scale."""


rule tabulate:
    input:
        unpack(lambda w: get_inputs("tabulate", int(w.table))),
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
    shell:
        "python -m flexround.jobs tabulate {input.job} --usage {log.usage} 2> {log.text}"


rule figure:
    input:
        unpack(lambda w: get_inputs("figure", int(w.figure))),
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
    shell:
        "python -m flexround.jobs figure {input.job} --usage {log.usage} > {log.text} 2>&1"


rule summary:
    input:
        unpack(lambda w: get_inputs("summary")),
    output:
        json="results/{scale}/metrics.json",
    log:
        text="logs/{scale}/summary.log",
        usage="logs/{scale}/summary.usage.json",
    resources:
        **get_resources("tabulate"),
    shell:
        "python -m flexround.jobs summary {input.job} --usage {log.usage} > {log.text} 2>&1"


rule ranking:
    input:
        unpack(lambda w: get_inputs("ranking")),
    output:
        csv="results/{scale}/ranking.csv",
    log:
        text="logs/{scale}/ranking.log",
        usage="logs/{scale}/ranking.usage.json",
    resources:
        **get_resources("tabulate"),
    shell:
        "python -m flexround.jobs ranking {input.job} --usage {log.usage} > {log.text} 2>&1"


rule publish_table:
    input:
        csv=f"results/{SCALE}/{SERIES}{{table}}.csv",
        tex=f"results/{SCALE}/{SERIES}{{table}}.tex",
        html=f"results/{SCALE}/{SERIES}{{table}}.html",
    output:
        csv=f"results/{SERIES}{{table}}.csv",
        tex=f"results/{SERIES}{{table}}.tex",
        html=f"results/{SERIES}{{table}}.html",
    log:
        f"logs/publish-{SERIES}{{table}}.log",
    localrule: True
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
    localrule: True
    resources:
        mem_mb=100,
        runtime=1,
    shell:
        "cp {input.pdf} {input.png} results/ 2> {log}"


rule claims:
    input:
        unpack(lambda w: get_inputs("claims")),
    output:
        claims=of_claims("claims.csv", caption="../report/claims.rst"),
        errata=of_claims("errata.csv", caption="../report/errata.rst"),
        html=of_claims("claims.html", caption="../report/claims.rst"),
    log:
        text="logs/{scale}/claims.log",
        usage="logs/{scale}/claims.usage.json",
    resources:
        **get_resources("tabulate"),
    shell:
        "python -m flexround.jobs claims {input.job} --usage {log.usage} 2> {log.text}"


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
    localrule: True
    resources:
        mem_mb=100,
        runtime=1,
    shell:
        "cp {input.claims} {input.errata} {input.html} results/ 2> {log}"
