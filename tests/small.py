"""The data sets of the mini scale with few rows, in the files that the real tasks read."""

import shutil

from flexround.settings.layout import ROOT
from flexround.settings.load import load_params
from synthetic import files

TASKS = {  # task -> its folder of the sources directory, and what writes that
    "glue:Glue": ("glue", lambda at: [files.glue(at, name, 300, 60) for name in ("rte", "stsb", "mnli", "cola")]),
    "squad:Squad": ("squad", lambda at: files.squad(at, 200, 40)),
    "language:LanguageModelling": ("wikitext2", lambda at: files.language(at, "wikitext2", 60, 8)),
    "webnlg:WebNLG": ("webnlg", lambda at: files.webnlg(at, 60, 8)),
    "commonsense:Commonsense": ("llama", lambda at: files.commonsense(at, 60, 8, 12, 8)),
}


def scale_without_tables(directory):
    """Write the example of a scale outside the project, without the tables that it describes; return its settings."""
    shutil.copytree(ROOT / "examples/squeezenet", directory)
    file = directory / "squeezenet.yaml"
    file.write_text(file.read_text().partition("shows:")[0])
    return load_params(str(file))


def write(sources, module):
    """Write what a task reads in the sources directory, if it is one of these; return whether it is."""
    folder, make = TASKS.get(module.removeprefix("flexround.tasks."), ("", None))
    if make and not (sources / folder).exists():
        make(sources / folder)
    return make is not None
