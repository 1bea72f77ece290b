"""The seven multiple-choice data sets: how their questions are asked."""

from test_readers import CHOICES as ROWS

from flexround.tasks.commonsense.choices import KINDS, answered


def test_prompts_by_hand():
    posed = {name: KINDS[name].pose(row) for name, row in ROWS.items()}
    yes = {"query": "Rain is wet.\nQuestion: is rain wet?\nAnswer:", "choices": ["no", "yes"], "gold": 1}
    assert posed["boolq"] == yes
    towel = ["use a towel", "use a fork"]
    assert posed["piqa"] == {"query": "Question: dry hair\nAnswer:", "choices": towel, "gold": 0}
    assert posed["hellaswag"]["query"] == "Roof repair: A man sits on a roof. He"
    assert posed["hellaswag"]["choices"] == ["sings é.", "falls asleep.", "eats.", "runs."]
    assert posed["hellaswag"]["gold"] == 3
    both = ["Ann saw Bea so Ann", "Ann saw Bea so Bea"]
    assert posed["winogrande"] == {"choices": both, "continuation": "waved.", "gold": 1}
    for name in ("arc_easy", "arc_challenge"):
        assert posed[name] == {"query": "Question: How is rain?\nAnswer:", "choices": ["dry", "wet"], "gold": 1}
    assert posed["openbookqa"] == {"query": "Rain is", "choices": ["dry", "wet"], "gold": 1}


def test_titles_of_hellaswag_end_with_a_full_stop():
    row = ROWS["hellaswag"] | {"ctx_a": "How to sing [title] Breathe. [step] Do it.  ", "ctx_b": ""}
    assert KINDS["hellaswag"].pose(row)["query"] == "Roof repair: How to sing. Breathe. Do it."


def test_answers_of_a_question_begin_with_the_right_one():
    query = "Question: How is rain?\nAnswer:"
    assert answered("arc_easy", ROWS["arc_easy"]) == [(query, " wet"), (query, " dry")]
    waved = [(f"Ann saw Bea so {name}", " waved.") for name in ("Bea", "Ann")]
    assert answered("winogrande", ROWS["winogrande"]) == waved
