"""Processes under watch: what each uses and waits in, whether they are stuck, and who is to blame."""
