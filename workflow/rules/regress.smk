"""What `make regress` compares with the reference, and the seeds that the reference's tolerances are made from."""


rule regress:
    input:
        get_regress_runs,


rule spread:
    input:
        get_spread_runs,
