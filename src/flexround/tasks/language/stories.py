"""Language modelling on TinyStories: a text file of stories, between which ``<|endoftext|>`` stands."""

from pathlib import Path

from flexround.tasks.language.options import StoriesOptions
from flexround.tasks.language.task import LanguageModelling
from flexround.tasks.text import files as text_files
from flexround.tasks.text import task as text

SEPARATOR = "<|endoftext|>"


class Stories(LanguageModelling):
    """Perplexity of stories; the first ones are calibrated on, the others evaluated."""

    options: StoriesOptions

    def rows(self, sources: Path) -> dict[str, text.Rows]:
        """Read the stories, a row each, so that each begins as the tokenizer begins a text."""
        text = "".join(text_files.lines(sources / self.options.root))
        stories = [story.strip() for story in text.split(SEPARATOR)]
        rows = [{"text": story} for story in stories if story]
        count = round(self.options.train * len(rows))
        return {"train": rows[:count], "validation": rows[count:]}
