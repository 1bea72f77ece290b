"""Tasks: data, fine-tuning recipe and metric, one file per task family of the paper's section 4."""
