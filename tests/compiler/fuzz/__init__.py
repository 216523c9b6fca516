"""Differential fuzzing of the compiler: random models (`draw`, `recipes`), what is right of them (`oracle`), and the smallest that is wrong (`judge`).

python -m tests.compiler.fuzz --count 2000 --seed 1      as `make long` runs it
python -m tests.compiler.fuzz --only Resize,Concat       models that hold one of these
python -m tests.compiler.fuzz --seed 1 --first 17 --count 1    one of them again
"""
