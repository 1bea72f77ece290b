"""Write the texts of the mini scale to ``params/data``, and pin them in ``params/sources.yaml``.

python worlds/freeze.py
"""

from pathlib import Path

from flexround.io import sources
from flexround.settings.load import load_params
from networks import pin
from synthetic import files, glue


def write(root: Path) -> None:
    """Write all data sets, each into a folder of ``root``."""
    for name in glue.NAMES:
        files.glue(root / "glue", name, 5000, 6000)
    files.squad(root / "squad", 6000, 5000)
    files.language(root / "wikitext2", "wikitext2", 800, 900)
    files.language(root / "wikitext2-lora", "wikitext2", 600, 900)
    files.language(root / "ptb", "ptb", 6000, 9000)
    files.language(root / "ptb-lora", "ptb", 4500, 9000)
    files.webnlg(root / "webnlg", 2500, 500)
    files.commonsense(root / "commonsense", documents=600, validation=600, questions=600, examples=200)


if __name__ == "__main__":
    write(Path("params/data"))
    for name, source in load_params("mini").sources.items():
        if source.inside.startswith("params/data/"):
            pin(name, sources.digest(Path(source.inside)), sources.size(Path(source.inside)))
