"""What needs torch or transformers, the extra ``outrider[torch]``: the reference decoder, CUDA, older tokenizers.

Nothing outside this folder imports either. What is here is imported where it is asked for, after ``outrider.extras``
has looked whether it can be.
"""
