"""Words for the keys that files of results and settings have, as the report shows them."""

from flexround.settings.schema import Hyper, Recipe, label

METRICS = {
    "top1": "top-1",
    "top5": "top-5",
    "acc": "accuracy",
    "acc_matched": "matched",
    "acc_mismatched": "mismatched",
    "f1": "F1",
    "em": "exact match",
    "matthews": "Matthews' correlation",
    "pearson": "Pearson's correlation",
    "spearman": "Spearman's correlation",
    "bleu": "BLEU",
    "ppl": "perplexity",
}
RUN = {
    "task": "task",
    "checkpoint": "network",
    "recipe": "recipe",
    "scale": "scale",
    "seed": "seed",
    "value": "value, median over seeds",
    "spread": "largest minus smallest over seeds",
    "n_seeds": "seeds",
    "n_examples": "examples of the test set",
    "stderr": "standard error on the test set",
    "higher_is_better": "higher is better",
    "published": "in the paper",
    "delta": "difference to the paper",
    "rival": "best other row",
    "lead": "difference to that row",
    "lead_stderr": "standard error of that difference",
    "p_value": "p of no difference",
    "metrics": "values",
    "protocol": "how it was asked",
    "asked_as": "asked as by lm-eval",
    "indices_sha256": "sha256 of which samples",
    "train": "training",
    "finish": "done to the network afterwards",
    "gate": "must lie in",
    "names": "of",
    "packages": "packages",
    "lm_eval": "lm-eval",
}
CHOICE = {"selected": "selected among recipes", "heldout": "on held-out training rows"}
SETTINGS = {name: label(field) for kind in (Hyper, Recipe) for name, field in kind.model_fields.items()}
WORDS = METRICS | RUN | CHOICE | SETTINGS


def of(key: str) -> str:
    """Return the words for a key, or for several joined by slashes; one that has none is read as words itself."""
    return "/".join(WORDS.get(part) or part.replace("_", " ") for part in key.split("/"))


def listed(*parts: str) -> str:
    """Return the parts of a text that are there, with commas between them."""
    return ", ".join(filter(None, parts))
