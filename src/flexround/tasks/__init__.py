"""Tasks: data, fine-tuning recipe and metric, one file for each family of the paper's section 4."""
