"""The summary of tables, against a hand-made one."""

from flexround.results.summary import summarise

HEADER = "table,recipe,metric,value,n_examples,status\n"


def test_cells_are_counted_and_measured_ones_averaged(tmp_path):
    first, second = tmp_path / "table3.csv", tmp_path / "table13.csv"
    first.write_text(
        f"{HEADER}3,full,top1,70.00,100,computed\n3,full,top1,75.02,100,computed\n3,full,top5,90.00,100,computed\n"
        "3,rtn,top1,,,missing\n3,rtn,top1,10.00,100,partial\n"
    )
    second.write_text(f"{HEADER}13,full,value,1e-3,,computed\n")
    assert summarise([first, second]) == {
        "cells": {"computed": 4, "missing": 1, "partial": 1},
        "table3": {"full": {"top1": 72.51, "top5": 90.0}, "rtn": {"top1": 10.0}},
    }
