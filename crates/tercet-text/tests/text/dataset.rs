//! Tests of training data files, packing, batches and held-out sets.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::LazyLock;

use crate::common::{data, temp_dir};
use proptest::prelude::*;
use tercet_text::Tokenizer;
use tercet_text::dataset::{
    BatchSampler, Corpus, CorpusOptions, DataError, IGNORED, LabelledTexts, LastBatchPolicy,
    PackedCorpus, ReadLimits, TextLabel, TextPairs, TokenBatch, TokenizedDocument,
};

pub(crate) static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let tokenizer = Tokenizer::from_file(data("tiny-rust-llama/tokenizer.json")).unwrap();
    tokenizer.with_bos(0).unwrap()
});

/// A file with this name and content, in the folder of a test.
pub(crate) fn file(test: &str, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = temp_dir(test).join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn texts_have_their_special_tokens() {
    let path = file(
        "special",
        "x.jsonl",
        "{\"text\": \"fn main\"}\n{\"text\": \"\"}\n",
    );
    let options = CorpusOptions {
        eos: Some(0),
        ..CorpusOptions::default()
    };
    let corpus = Corpus::read(&path, &TOKENIZER, None, options).unwrap();
    let mut wanted = TOKENIZER.encode("fn main", true).unwrap();
    wanted.push(0);
    assert_eq!(corpus.documents().len(), 1);
    assert_eq!(corpus.documents()[0].tokens(), wanted);
    assert_eq!(corpus.loss_tokens(), wanted.len() - 1);
    assert!(
        corpus.notes()[0].starts_with("1 documents"),
        "{:?}",
        corpus.notes()
    );
}

/// Documents of these lengths; every token is unique across them.
fn corpus(lens: &[usize]) -> Corpus {
    let mut next = 0;
    let documents = lens.iter().map(|len| {
        next += len;
        TokenizedDocument::new((next - len..next).map(|t| t as u32 + 1).collect())
    });
    Corpus::new(documents.collect())
}

struct Host {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    segments: Vec<i32>,
    labels: Vec<i32>,
}

fn host(batch: &TokenBatch) -> Host {
    let numbers = |t: &tercet_ir::Tensor| t.as_slice::<i32>().unwrap().to_vec();
    Host {
        tokens: numbers(&batch.tokens),
        positions: numbers(&batch.positions),
        segments: numbers(&batch.segments),
        labels: numbers(&batch.labels),
    }
}

/// Checks the tokens and labels of rows against the documents, independently of the packing.
/// Returns the tokens in the rows.
fn check_rows(batch: &TokenBatch, seq: usize, next_of: &BTreeMap<i32, i32>) -> Vec<i32> {
    let host = host(batch);
    let mut seen = Vec::new();
    let mut learnt = 0;
    for row in 0..host.tokens.len() / seq {
        let at = |i: usize| row * seq + i;
        for i in (0..seq).map(at) {
            let follows = i + 1 < at(0) + seq && host.segments[i + 1] == host.segments[i];
            if host.segments[i] == 0 {
                assert_eq!(
                    (host.tokens[i], host.positions[i], host.labels[i]),
                    (-7, 0, IGNORED)
                );
                continue;
            }
            seen.push(host.tokens[i]);
            if follows {
                assert_eq!(host.positions[i + 1], host.positions[i] + 1);
                assert_eq!(host.labels[i], host.tokens[i + 1]);
                assert_eq!(next_of.get(&host.tokens[i]), Some(&host.tokens[i + 1]));
                learnt += 1;
            } else {
                assert_eq!(host.labels[i], IGNORED);
            }
            let begins = i == at(0) || host.segments[i - 1] != host.segments[i];
            assert_eq!(begins, host.positions[i] == 0);
            assert!(
                !begins || host.segments[i] == 1 || host.segments[i] == host.segments[i - 1] + 1
            );
        }
    }
    assert_eq!((batch.filled, batch.loss_tokens), (seen.len(), learnt));
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn every_token_once_an_epoch(
        lens in prop::collection::vec(2usize..40, 1..30),
        seq in 2usize..24,
        batch in 1usize..5,
        seed: u64,
    ) {
        let corpus = corpus(&lens);
        let total = lens.iter().sum::<usize>();
        let next_of: BTreeMap<i32, i32> = corpus
            .documents()
            .iter()
            .flat_map(|d| d.tokens().windows(2).map(|w| (w[0] as i32, w[1] as i32)))
            .collect();
        // -7 as padding, to distinguish it from tokens.
        let packed = PackedCorpus::new(corpus, seq, Some(-7i32 as u32)).unwrap();
        let all: Vec<i32> = (1..=total as i32).collect();

        // Documents that fit stay whole; best fit leaves at most one row half empty.
        for row in packed.rows() {
            prop_assert!(row.iter().map(|s| s.len).sum::<usize>() <= seq);
            for segment in row {
                let len = lens[segment.document];
                prop_assert!(segment.len == len || (len > seq && segment.start % seq == 0));
            }
        }
        let half_empty = packed.rows().iter();
        let half_empty = half_empty.filter(|r| 2 * r.iter().map(|s| s.len).sum::<usize>() <= seq);
        prop_assert!(half_empty.count() <= 1);

        let mut once = Vec::new();
        for batch in packed.once(batch).unwrap() {
            once.extend(check_rows(&batch.unwrap(), seq, &next_of));
        }
        once.sort_unstable();
        prop_assert_eq!(&once, &all);

        // The number of batches covers whole epochs, so each token occurs three times.
        let mut seen = Vec::new();
        let mut batches = packed.batches(batch, seed).unwrap();
        let epochs = 3 * batch;
        for _ in 0..epochs * packed.rows().len() / batch {
            seen.extend(check_rows(&batches.next().unwrap().unwrap(), seq, &next_of));
        }
        prop_assert_eq!(batches.position(), (epochs as u64, 0));
        seen.sort_unstable();
        let wanted: Vec<i32> = all.iter().flat_map(|t| vec![*t; epochs]).collect();
        prop_assert_eq!(seen, wanted);
    }
}

#[test]
fn the_same_seed_gives_the_same_and_resuming_the_rest() {
    let packed = PackedCorpus::new(corpus(&[5, 9, 3, 12, 7, 4, 30, 2, 6, 8]), 8, None).unwrap();
    let take = |seed, step, count| -> Vec<Vec<i32>> {
        let mut batches = packed.batches(2, seed).unwrap();
        batches.seek(step);
        let taken = batches.take(count);
        taken.map(|b| host(&b.unwrap()).tokens).collect()
    };
    let all = take(1, 0, 40);
    assert_eq!(all, take(1, 0, 40));
    assert_ne!(all, take(2, 0, 40));
    for step in 0..40 {
        assert_eq!(all[step..], take(1, step as u64, 40 - step));
    }
    let rows = packed.rows().len();
    assert_eq!(
        rows % 2,
        1,
        "the case needs a batch over the end of an epoch"
    );
    let mut batches = packed.batches(2, 1).unwrap();
    batches.seek_to(1, 1);
    assert_eq!(batches.position(), (1, 1));
    assert_eq!(batches.step(), rows.div_ceil(2) as u64 + 1);
    assert_eq!(batches.per_epoch(), rows.div_ceil(2) as u64);
    assert_eq!(
        host(&batches.next().unwrap().unwrap()).tokens,
        all[rows.div_ceil(2) + 1]
    );
}

#[test]
fn prompts_are_not_learnt() {
    let document =
        TokenizedDocument::masked(vec![1, 2, 3, 4, 5], vec![true, false, true, true, false]);
    let packed = PackedCorpus::new(Corpus::new(vec![document]), 4, None).unwrap();
    let batch = packed.batch(&[0, 1], 3).unwrap();
    let host = host(&batch);
    assert_eq!(batch.tokens.shape(), [3, 4]);
    assert_eq!(host.tokens, [1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(host.labels[..5], [IGNORED, 3, 4, IGNORED, IGNORED]);
    assert_eq!(batch.loss_tokens, 2);
}

#[test]
fn sizes_that_are_refused() {
    for seq in [0, 1, usize::MAX] {
        let packed = PackedCorpus::new(corpus(&[4]), seq, None);
        assert!(matches!(packed, Err(DataError::BadRows { .. })));
    }
    let packed = PackedCorpus::new(corpus(&[4]), 4, None).unwrap();
    for batch in [0, usize::MAX, 1 << 29] {
        assert!(matches!(
            packed.batches(batch, 0),
            Err(DataError::BadBatch { .. })
        ));
    }
    // A row longer than the document is padded.
    assert!(
        PackedCorpus::new(corpus(&[4]), 64, None)
            .unwrap()
            .batches(1, 0)
            .is_ok()
    );
}

fn tokens_of(corpus: &Corpus) -> Vec<u32> {
    corpus
        .documents()
        .iter()
        .flat_map(|d| d.tokens().to_vec())
        .collect()
}

#[test]
fn held_out_parts_do_not_leak() {
    for (count, share, held) in [(100, 0.05, 5), (2, 0.05, 1), (10, 0.9, 5), (3, 0.5, 1)] {
        let all = corpus(&vec![4; count]);
        let (train, test) = all.clone().split(share, 7).unwrap();
        let test = test.unwrap();
        assert_eq!(test.documents().len(), held);
        let (a, b): (HashSet<_>, HashSet<_>) = (
            tokens_of(&train).into_iter().collect(),
            tokens_of(&test).into_iter().collect(),
        );
        assert!(a.is_disjoint(&b));
        assert_eq!(a.len() + b.len(), 4 * count);
        assert_eq!(all.clone().split(share, 7).unwrap().0, train);
        assert!(count < 10 || all.split(share, 8).unwrap().0 != train);
    }
    assert_eq!(corpus(&[9]).split(0.0, 1).unwrap(), (corpus(&[9]), None));
    for share in [1.0, -0.1, f64::NAN] {
        assert!(matches!(
            corpus(&[9]).split(share, 1),
            Err(DataError::BadShare { .. })
        ));
    }
}

#[test]
fn equal_documents_stay_together() {
    let document = |token: u32| TokenizedDocument::new(vec![token, 1, 2]);
    for seed in 0..20 {
        let tokens = [5, 6, 5, 7, 5, 8];
        let all = Corpus::new(tokens.into_iter().map(document).collect());
        let (train, test) = all.split(0.3, seed).unwrap();
        let test = test.unwrap();
        assert!((1..=3).contains(&test.documents().len()));
        let train: HashSet<_> = train
            .documents()
            .iter()
            .map(|d| d.tokens().to_vec())
            .collect();
        assert!(test.documents().iter().all(|d| !train.contains(d.tokens())));
    }
}

#[test]
fn one_document_is_cut() {
    for (len, share, held) in [(1000, 0.05, 50), (1000, 0.9, 499), (4, 0.05, 1)] {
        let (train, test) = corpus(&[len]).split(share, 1).unwrap();
        let test = test.unwrap();
        assert_eq!(test.loss_tokens(), held);
        let joined = [tokens_of(&train), tokens_of(&test)].concat();
        assert_eq!(joined, tokens_of(&corpus(&[len])));
    }
    // Equal documents are divided between training and test set at the same token.
    let copies = Corpus::new(vec![TokenizedDocument::new((0..10).collect()); 3]);
    let (train, test) = copies.split(0.2, 1).unwrap();
    assert_eq!(
        (train.documents().len(), test.unwrap().documents().len()),
        (3, 1)
    );
    assert!(
        train
            .documents()
            .iter()
            .all(|d| d.tokens() == [0, 1, 2, 3, 4, 5, 6])
    );
    // A conversation is cut by its training targets.
    let learnt = [false, false, true, true, false, false, false, true];
    let chat = TokenizedDocument::masked((0..8).collect(), learnt.to_vec());
    let (train, test) = Corpus::new(vec![chat]).split(0.3, 1).unwrap();
    assert_eq!((train.loss_tokens(), test.unwrap().loss_tokens()), (2, 1));
    for len in [2, 3] {
        let error = corpus(&[len]).split(0.05, 1).unwrap_err();
        assert!(matches!(error, DataError::TooFewToSplit { .. }));
    }
}

#[test]
fn labelled_texts() {
    let lines = "{\"text\": \"fn a\", \"label\": \"no\"}\n{\"text\": \"let b = 1\", \"label\": \"yes\"}\n\
                 {\"text\": \"c\", \"label\": \"no\"}\n";
    let read = |lines: &str, names: Option<&[TextLabel]>| {
        let path = file("labelled_texts", "x.jsonl", lines);
        LabelledTexts::read(path, names, ReadLimits::default())
    };
    let texts = read(lines, None).unwrap();
    let name = |n: &str| TextLabel::Name(n.to_owned());
    assert_eq!(texts.names(), [name("no"), name("yes")]);
    assert_eq!(texts.classes(), [0, 1, 0]);
    let (inputs, labels) = texts.batch(&TOKENIZER, &[1, 2], 64).unwrap();
    assert_eq!(labels.as_slice::<i32>().unwrap(), [1, 0]);
    let batch = TOKENIZER.encode_batch(&["let b = 1", "c"], 64).unwrap();
    let ids: Vec<u32> = inputs
        .ids
        .as_slice::<i32>()
        .unwrap()
        .iter()
        .map(|x| *x as u32)
        .collect();
    assert_eq!(ids, batch.ids);
    assert_eq!(inputs.mask.shape(), [2, batch.row_len]);
    let mask: Vec<u8> = batch.mask.iter().map(|m| u8::from(*m)).collect();
    assert_eq!(inputs.mask.bytes(), mask);
    let (train, test) = texts.clone().split(0.05, 1).unwrap();
    let test = test.unwrap();
    assert_eq!((train.len(), test.len(), test.names().len()), (2, 1, 2));

    // Integer labels are sorted by value.
    let numbers = "{\"text\": \"a\", \"label\": 10}\n{\"text\": \"b\", \"label\": -2}";
    assert_eq!(
        read(numbers, None).unwrap().names(),
        [TextLabel::Int(-2), TextLabel::Int(10)]
    );
    let known = [name("yes"), name("no"), name("maybe")];
    assert_eq!(read(lines, Some(&known)).unwrap().classes(), [1, 0, 1]);
    let error = read(lines, Some(&known[..1])).unwrap_err();
    assert!(
        matches!(error, DataError::UnknownLabel { line: 1, .. }),
        "{error}"
    );
    let mixed = "{\"text\": \"a\", \"label\": 10}\n\n{\"text\": \"b\", \"label\": \"x\"}";
    assert!(matches!(
        read(mixed, None),
        Err(DataError::MixedLabels { line: 3, .. })
    ));
    let one = "{\"text\": \"a\", \"label\": 10}";
    assert!(matches!(read(one, None), Err(DataError::OneLabel { .. })));
}

#[test]
fn pairs_of_texts() {
    let lines = "{\"anchor\": \"a\", \"positive\": \"b c\"}\n{\"query\": \"q\", \"positive\": \"p\"}\n\
                 {\"sentence1\": \"s\", \"sentence2\": \"t\"}\n{\"anchor\": \"a\", \"positive\": \"z\"}";
    let path = file("pairs_of_texts", "x.jsonl", lines);
    let pairs = TextPairs::read(&path, ReadLimits::default()).unwrap();
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    let wanted = [
        pair("a", "b c"),
        pair("q", "p"),
        pair("s", "t"),
        pair("a", "z"),
    ];
    assert_eq!(pairs.pairs(), wanted);
    let mut order = BatchSampler::new(pairs.len(), 3, 5, LastBatchPolicy::Short);
    assert_eq!((order.batch(0).len(), order.batch(1).len()), (3, 1));
    let (anchors, positives) = pairs.batch(&TOKENIZER, &order.batch(0), 16).unwrap();
    assert_eq!((anchors.ids.shape()[0], positives.ids.shape()[0]), (3, 3));
    for seed in 0..10 {
        let (train, test) = pairs.clone().split(0.5, seed).unwrap();
        let anchors: HashSet<_> = train.pairs().iter().map(|p| &p.0).collect();
        assert!(
            test.unwrap()
                .pairs()
                .iter()
                .all(|p| !anchors.contains(&p.0))
        );
    }
}
