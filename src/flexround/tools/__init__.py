"""Commands for users: plan, report, verify, reference, regress, readme; and parts of make pull and make push."""
