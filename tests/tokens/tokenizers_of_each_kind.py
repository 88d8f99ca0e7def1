"""Tokenizers of each kind that Offstage reads, trained by the `tokenizers` package on texts that the caller gives."""
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"]

P, N, D = pre_tokenizers, normalizers, decoders
LLAMA2_DECODER = D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)])
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def frame(tokenizer, begin, end=None):
    names = [name for name in (begin, end) if name]
    return processors.TemplateProcessing(single=f"{begin} $A" + (f" {end}" if end else ""),
                                         special_tokens=[(name, tokenizer.token_to_id(name)) for name in names])


def byte_level(texts, vocab, steps, normalizer=None, added=(), begin=None, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else P.Sequence(steps)
    tokenizer.decoder = D.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=["<|endoftext|>", "<|im_start|>"], show_progress=False,
        initial_alphabet=P.ByteLevel.alphabet()))
    tokenizer.add_tokens(list(added))
    if begin:
        tokenizer.post_processor = frame(tokenizer, begin)
    return tokenizer


def by_patterns(*patterns):
    return [P.Split(Regex(pattern), "isolated") for pattern in patterns] + [P.ByteLevel(False, use_regex=False)]


def pieces(texts, vocab, normalizer, splitter, decoder, byte_fallback=True, fuse_unk=True, begin="<s>"):
    """BPE over marked words, trained word by word and used as `splitter` says (None: on whole texts)."""
    def empty():
        return Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse_unk, byte_fallback=byte_fallback))
    trained = empty()
    if normalizer:
        trained.normalizer = normalizer
    trained.pre_tokenizer = splitter or P.Split("▁", "merged_with_next")
    trained.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=["<unk>", "<s>", "</s>"] + (BYTES if byte_fallback else []),
        show_progress=False, limit_alphabet=max(60, vocab // 5)))
    content = json.loads(trained.to_str())
    content["pre_tokenizer"] = json.loads(trained.to_str())["pre_tokenizer"] if splitter else None
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in BYTES]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.post_processor = frame(tokenizer, begin)
    return tokenizer


def unigram(texts, vocab, normalizer, splitter, decoder, byte_fallback=False):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter or P.Metaspace("▁")
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(texts, trainers.UnigramTrainer(
        vocab_size=vocab, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
    content = json.loads(tokenizer.to_str())
    if byte_fallback:
        words = content["model"]["vocab"]
        words += [[byte, 0.0] for byte in BYTES if byte not in {word for word, _ in words}]
        content["model"]["byte_fallback"] = True
    if splitter is None:
        content["pre_tokenizer"] = None
    return Tokenizer.from_str(json.dumps(content))


def words(texts, vocab, normalizer, steps, **affix):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", **affix))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = P.Sequence(steps)
    if "end_of_word_suffix" in affix:
        tokenizer.decoder = D.BPEDecoder(affix["end_of_word_suffix"])
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=["<unk>"], show_progress=False, limit_alphabet=300, **affix))
    return tokenizer


def make(texts, vocab):
    """Name and tokenizer, one after another: first those that models use, then all else that Offstage knows."""
    yield "gpt2", byte_level(texts, vocab, [P.ByteLevel(add_prefix_space=False)])
    yield "llama3", byte_level(texts, vocab, by_patterns(LLAMA3), ignore_merges=True, begin="<|endoftext|>")
    yield "qwen", byte_level(texts, vocab, by_patterns(QWEN), N.NFC())
    yield "llama2", pieces(texts, vocab, N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None, LLAMA2_DECODER)
    yield "unigram", unigram(texts, vocab, N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")]),
                             P.Metaspace("▁"), D.Metaspace("▁"))
    yield "words", words(texts, vocab, N.Lowercase(), [P.WhitespaceSplit(), P.Punctuation()], end_of_word_suffix="</w>")
    yield "added", byte_level(texts, vocab, [P.ByteLevel(add_prefix_space=False)], N.NFC(), added=[
        AddedToken("[MASK]", lstrip=True, rstrip=True), AddedToken("mask", single_word=True),
        AddedToken("don't", normalized=True), AddedToken("def ", normalized=False),
        AddedToken("<s>", special=True), AddedToken("<s>a", special=True)])


def make_more(texts, vocab):
    yield "gpt2prefix", byte_level(texts, vocab, [P.ByteLevel(add_prefix_space=True)])
    yield "gpt4o", byte_level(texts, vocab, [P.Split(Regex(GPT4O), "removed", invert=True),
                                             P.ByteLevel(False, use_regex=False)])
    yield "deepseek", byte_level(texts, vocab, by_patterns(*DEEPSEEK))
    yield "digits", byte_level(texts, vocab, [P.Digits(individual_digits=True), P.ByteLevel(add_prefix_space=False)])
    yield "spelled", byte_level(texts, vocab, [P.ByteLevel(True, use_regex=False), P.Digits(False),
                                               P.Punctuation("merged_with_next")])
    yield "stripped", byte_level(texts, vocab, [P.Whitespace(), P.ByteLevel(False, use_regex=False)],
                                 N.Sequence([N.NFKD(), N.Lowercase(), N.StripAccents(), N.Strip()]))
    yield "nfd", byte_level(texts, vocab, [P.WhitespaceSplit(), P.Punctuation("merged_with_previous"), P.ByteLevel(True)],
                            N.NFD())
    yield "replaced", byte_level(texts, vocab, [P.Split(Regex(r"\w+|\W"), "contiguous")], N.Sequence(
        [N.NFKC(), N.Replace(Regex(r"\d+"), "0"), N.Replace("the", "THE"), N.Prepend("_"), N.ByteLevel()]))
    yield "llama2first", pieces(texts, vocab, None, P.Metaspace("▁", prepend_scheme="first", split=False), LLAMA2_DECODER)
    yield "unknown", pieces(texts, vocab, None, P.Metaspace("▁"), D.Metaspace("▁"), byte_fallback=False, fuse_unk=False)
    yield "fused", pieces(texts, vocab, None, P.Metaspace("▁", "never"), D.Metaspace("▁", "never"), byte_fallback=False)
    yield "prefixed", words(texts, vocab, None, [P.CharDelimiterSplit(" "), P.Punctuation("contiguous")],
                            continuing_subword_prefix="##")
    yield "unigrambytes", unigram(texts, vocab, N.Sequence([N.Prepend("▁"), N.Replace(" ", "▁")]), None, LLAMA2_DECODER,
                                  byte_fallback=True)
