"""This machine's evaluator for searches elsewhere: sessions in processes of their own, one queue, HTTP."""
