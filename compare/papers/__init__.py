"""Published reports: their figures as data, how their runs are made again, and what is to be said of their claims."""
