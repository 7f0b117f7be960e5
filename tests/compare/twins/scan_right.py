from tests.compare.twins import scanner

if __name__ == "__main__":
    scanner.main("right")
