"""FlexRound (ICML 2023), reproduced: quantization, reconstruction, tables.

Dependencies point one way: stages -> tasks, tables, reconstruct -> models, surgery -> quant.
"""
