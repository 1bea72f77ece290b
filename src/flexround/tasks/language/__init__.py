"""WikiText2, PTB and C4: language modelling."""
