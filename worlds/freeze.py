"""Write mini's texts and the rehearsal's images to ``params/data``, and pin them in ``params/sources.yaml``.

python worlds/freeze.py
"""

from pathlib import Path

from PIL import Image

from flexround.io import sources
from flexround.mini import digits
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
    images(root / "imagenet")


def images(root: Path) -> None:
    """Write digits in two sizes, all called JPEG; as in ILSVRC2012, one is grey, one in CMYK, and one is a PNG."""
    made = digits.make(200, 100, seed=0)
    odd = {"train/n0/0": ("L", "JPEG"), "train/n1/0": ("CMYK", "JPEG"), "train/n2/0": ("RGB", "PNG")}
    for split, count in (("train", 4), ("val", 1)):
        for label in range(digits.CLASSES):
            chosen = made[f"{split}_images"][made[f"{split}_labels"] == label][:count]
            for number, pixels in enumerate(chosen):
                name = f"{split}/n{label}/{number}"
                mode, form = odd.get(name, ("RGB", "JPEG"))
                path = root / f"{name}.JPEG"
                path.parent.mkdir(parents=True, exist_ok=True)
                size = (64, 48) if number % 2 else (40, 60)
                Image.fromarray(pixels).convert(mode).resize(size, Image.Resampling.BICUBIC).save(path, form)


if __name__ == "__main__":
    write(Path("params/data"))
    for name, source in load_params("mini").sources.items():
        if source.inside.startswith("params/data/"):
            pin(name, sources.digest(Path(source.inside)), sources.size(Path(source.inside)))
