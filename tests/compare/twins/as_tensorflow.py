import sys

from tests.compare.twins import fake

if __name__ == "__main__":
    sys.exit(fake.main("tensorflow"))
