"""Tasks: data, fine-tuning recipe and metric, one folder for each family of the paper's section 4."""
