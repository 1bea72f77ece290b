"""What people run: plan, rehearse, report, verify, reference, regress, readme; and parts of make pull and make push."""
