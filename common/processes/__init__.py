"""The processes of one run: started, joined and watched."""
