"""Headstart: pretrain one base, swap its head, fine-tune on a few labels, and prove what it bought."""
