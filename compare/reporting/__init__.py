"""Reports for people and programs: tables, plots, pages, frames and exports."""
