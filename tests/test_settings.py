"""Settings: what the shipped files resolve to, and which rule wins."""

import hashlib
import itertools

import pytest
from table_runs import loaded

from flexround.settings import user_rows
from flexround.settings.layout import PARAMS, ROOT, Run
from flexround.settings.params import DEFAULT as OF_FIELD
from flexround.settings.params import hyper
from flexround.settings.schema import Defaults, Hyper, HyperRule, Recipe, Recipes

SCALES = ("mini", "paper")
NETWORKS = ("resnet18", "resnet50", "mobilenetv2")
ORIGINS = ("brecq", "torchvision")
PUBLISHED = "d6fe2f416a4f787c90041bc89f24c44b3ecf70e65edded6d337ba2e6489bdafd"  # sha256 of the paper's numbers


def resolved(recipe, checkpoint="resnet18-brecq", scale="paper"):
    return hyper(loaded(scale), Run(scale, "imagenet", checkpoint, recipe, 0))[0]


# what is shipped


def test_the_published_numbers_are_the_papers():
    assert hashlib.sha256((PARAMS / "published.csv").read_bytes()).hexdigest() == PUBLISHED


@pytest.mark.parametrize("name", SCALES)
def test_every_value_of_every_run_is_that_of_the_rule_it_names(name):
    params = loaded(name)
    runs = [run for run in params.shown() if params.recipe(run[2]).setting]
    alternatives = {checkpoint for checkpoint in params.scale.checkpoints if checkpoint.endswith("-trained")}
    assert {checkpoint for _, checkpoint, _ in runs} == set(params.scale.checkpoints) - alternatives
    assert len({recipe for _, _, recipe in runs}) >= 36
    rules = [(rule.source, rule.set) for rule in (*params.defaults.hyper, *params.scale.hyper)]
    for task, checkpoint, key in runs:
        recipe = params.recipes.recipes[key]
        own = [(f"recipe {key}", recipe.hyper | ({"samples": recipe.samples} if recipe.samples else {}))]
        settings, sources = hyper(params, Run(name, task, checkpoint, key, 0))
        assert set(sources) == set(Hyper.model_fields)
        for field, source in sources.items():
            if source == OF_FIELD:
                assert getattr(settings, field) == Hyper.model_fields[field].default
                continue
            values = [values[field] for where, values in rules + own if where == source and field in values]
            assert getattr(settings, field) in values, f"{key} on {checkpoint}: {field} is not from {source!r}"


def test_mini_follows_the_papers_rules_where_it_sets_no_budget():
    budget = {"samples", "iters", "lr", "a_iters", "a_lr", "reg_weight", "fused"}
    for recipe in ("b-flexround-w4", "b-adaround-w4a4", "q-flexround-w3a3"):
        for checkpoint in ("resnet18-brecq", "mobilenetv2-brecq"):
            mini, paper = (resolved(recipe, checkpoint, name).model_dump() for name in SCALES)
            assert {key for key in mini if mini[key] != paper[key]} <= budget


# the paper's own values (section 4.2; BRECQ and QDrop where it is silent)

FLEXROUND = {"iters": 5000, "schedule": "cosine", "reg_weight": 0}
ADAROUND = {"iters": 20000, "lr": 1e-3, "schedule": "none", "reg_warmup": 0.2, "reg_beta_start": 20, "reg_beta_end": 2}
BOTH = {
    "samples": 1024,
    "batch": 32,
    "stem_bits": 8,
    "head_bits": 8,
    "head_input_bits": 8,
    "a_iters": 5000,
    "a_lr": 4e-5,
}
BOTH |= {"w_scheme": "symmetric", "w_granularity": "tensor", "a_scheme": "symmetric"}
B = {"stem_output_bits": 8, "reconstruct_stem": False, "keep_probability": 1, "input_keep_probability": 1}
Q = {"stem_output_bits": "low", "reconstruct_stem": True, "keep_probability": 0.5, "input_keep_probability": 0.5}
PAPERS = {  # recipes, what ResNets have, what MobileNetV2 has otherwise
    "flexround": (
        "b-flexround-w4 b-flexround-w3 b-flexround-w4-fixed-s1 b-flexround-w4-no-s3-s4 cle-b-flexround-w4",
        FLEXROUND | {"lr": 4e-4},
        {"lr": 1e-3},
    ),
    "flexround w2": ("b-flexround-w2", FLEXROUND | {"lr": 1e-3}, {}),
    "flexround B": ("b-flexround-w4a4", FLEXROUND | BOTH | B | {"lr": 4e-4}, {"lr": 1e-3}),
    "flexround Q": ("q-flexround-w4a4 q-flexround-w3a3", FLEXROUND | BOTH | Q | {"lr": 4e-4}, {"lr": 1e-3}),
    "adaround": ("b-adaround-w4 b-adaround-w2", ADAROUND | {"reg_weight": 0.01}, {"reg_weight": 0.1}),
    "adaround B": ("b-adaround-w4a4", ADAROUND | BOTH | B | {"reg_weight": 0.01}, {"reg_weight": 0.1}),
    "adaround Q": ("q-adaround-w3a3", ADAROUND | BOTH | Q | {"reg_weight": 0.01}, {"reg_weight": 0.1}),
}


@pytest.mark.parametrize("kind", PAPERS)
def test_images_are_reconstructed_as_the_paper_says(kind):
    recipes, resnets, mobilenet = PAPERS[kind]
    for recipe, network, origin in itertools.product(recipes.split(), NETWORKS, ORIGINS):
        expected = resnets | (mobilenet if network == "mobilenetv2" else {})
        settings = resolved(recipe, f"{network}-{origin}").model_dump()
        assert {key: settings[key] for key in expected} == expected, f"{recipe} on {network}-{origin}"


@pytest.mark.parametrize("name", SCALES)
def test_adaquants_rates_are_constant_and_combined_by_group(name):
    assert resolved("b-adaquant-w3", scale=name).schedule == "none"
    both, flexround = (resolved(f"b-{method}-w2", scale=name) for method in ("adaquant-flexround", "flexround"))
    assert both.schedule == {"v": "none", "scales": "cosine"}
    assert both.lr["scales"] == flexround.lr


def test_rows_of_equal_iterations_differ_in_nothing_else():
    params = user_rows.configured("paper", str(ROOT / "examples/equal_iterations.yaml"))
    rows = [row for number in (2, 3) for row in params.tables[number].rows() if row.recipe.endswith("-equal")]
    assert len(rows) == 7
    for row in rows:
        name = row.recipe.removesuffix("-equal")
        equal, own, adaround = (
            hyper(params, Run("paper", "imagenet", "resnet18-brecq", recipe, 0))[0]
            for recipe in (row.recipe, name, name.replace("flexround", "adaround"))
        )
        assert equal.iters == adaround.iters == 4 * own.iters
        assert equal.model_copy(update={"iters": own.iters}) == own


# which rule wins


def made(recipe=None, defaults=(), scale=()):
    """Return settings whose first rule sets every key as mini does; further ones as given."""
    mini = loaded("mini")
    base = rule(resolved("b-flexround-w4", scale="mini").model_dump(), source="the base")
    recipes = Recipes(roundings=mini.recipes.roundings, recipes={"mine": recipe or flexround()})
    return mini._replace(
        recipes=recipes,
        defaults=Defaults(hyper=(base, *defaults)),
        scale=mini.scale.model_copy(update={"hyper": tuple(scale)}),
    )


def flexround(**fields):
    return Recipe(**{"setting": "B", "rounding": "flexround", "w_bits": 4} | fields)


def rule(values, source="a test", **when):
    return HyperRule(when=when, set=values, source=source)


def value_of(params, key):
    settings, sources = hyper(params, Run("mini", "imagenet", "resnet18-brecq", "mine", 0))
    return getattr(settings, key), sources[key]


DEFAULT, SCALE = rule({"iters": 1, "a_iters": 1}, "defaults"), rule({"iters": 2, "samples": 100}, "the scale")
NARROW, WIDE = rule({"iters": 1}, "narrow", recipe="mine"), rule({"iters": 2}, "wide")


@pytest.mark.parametrize(
    ("own", "defaults", "scale", "key", "expected"),
    [
        ({}, [DEFAULT], [SCALE], "iters", (2, "the scale")),
        ({}, [DEFAULT], [SCALE], "a_iters", (1, "defaults")),
        ({}, [DEFAULT], [SCALE], "batch", (32, "the base")),
        ({"hyper": {"iters": 3}}, [DEFAULT], [SCALE], "iters", (3, "recipe mine")),
        ({"samples": 77, "hyper": {"samples": 88}}, [], [SCALE], "samples", (77, "recipe mine")),
        ({}, [], [NARROW, WIDE], "iters", (2, "wide")),
        ({}, [], [WIDE, NARROW], "iters", (1, "narrow")),
    ],
)
def test_the_recipe_beats_the_scale_which_beats_the_defaults(own, defaults, scale, key, expected):
    assert value_of(made(flexround(**own), defaults, scale), key) == expected


@pytest.mark.parametrize(
    ("when", "matches"),
    [
        ({"setting": "B", "w_bits": 4, "rounding": "flexround"}, True),
        ({"w_bits": 4, "rounding": "adaround"}, False),
        ({"a_bits": 4}, False),
        ({"a_bits": "*"}, False),  # of activations that are quantized
        ({"checkpoint": "resnet*-brecq", "task": "imagenet", "recipe": "m*"}, True),
        ({"checkpoint": "resnet"}, False),
    ],
)
def test_a_rule_holds_for_the_runs_that_match_all_its_patterns(when, matches):
    assert value_of(made(scale=[rule({"iters": 7}, **when)]), "iters")[0] == (7 if matches else 400)
