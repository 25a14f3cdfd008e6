//! Tests of the types that open and run a model with one call each. They are compared with the
//! parts that they are made of, and with references.

use serde_json::Value;
use tercet::Device;
#[cfg(feature = "grammar")]
use tercet_models::constraint::Grammar;
use tercet_models::dataset::template::TemplateValue;
use tercet_models::dataset::{ChatMessage, ChatTemplate, Role};
use tercet_models::speech::{SAMPLE_RATE, SpeechOptions};
use tercet_models::{
    Classifier, DecoderOptions, Embedder, EncoderOptions, Error, FinishReason, GenerateEvent,
    GenerateOptions, Image, ImageEmbedder, LanguageModel, MatmulPrecision, ModelError, ModelFamily,
    ModelFiles, OpenModel, PromptText, SamplingOptions, TextOptions, Transcriber, end_ids,
    generate,
};

use crate::common::data;

const LLAMA: &str = "tiny-rust-llama/tiny-rust-llama-q8_0.gguf";

fn llama() -> LanguageModel {
    let options = LanguageModel::options().device(Device::cpu());
    options.open(data(LLAMA)).unwrap()
}

fn reference(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(path)).unwrap()).unwrap()
}

fn question(text: &str) -> [ChatMessage; 1] {
    [ChatMessage::new(Role::User, text)]
}

/// The text and tokens after a prompt, by the generator alone.
fn generated(prompt: &[u32], max_tokens: usize, stop: &[String]) -> (String, Vec<u32>) {
    let files = ModelFiles::open(data(LLAMA)).unwrap();
    let tokenizer = files.tokenizer().unwrap();
    let decoder = files.decoder(|spec| DecoderOptions {
        matmul_precision: MatmulPrecision::Auto,
        ..DecoderOptions::new(spec)
    });
    let decoder = decoder.unwrap();
    let eos = end_ids(&decoder.config.eos, &tokenizer);
    let mut generator = decoder.generator(&Device::cpu()).unwrap();
    let options = GenerateOptions {
        max_tokens,
        stop,
        eos: &eos,
        spelled: &[],
    };
    let mut text = String::new();
    let event = &mut |event: GenerateEvent<'_>| {
        if let GenerateEvent::Text(piece, _) = event {
            text += piece;
        }
        true
    };
    let generation = generate(&mut generator, &tokenizer, prompt, &options, event).unwrap();
    (text, generation.tokens)
}

#[test]
fn texts_are_those_of_the_generator_and_the_reference() {
    let mut model = llama();
    for case in reference("tiny-rust-llama/reference.json")
        .as_object()
        .unwrap()
        .values()
    {
        let prompt = case["prompt"].as_str().unwrap();
        let ids = model.tokenizer().encode(prompt, true).unwrap();
        let options = TextOptions::new().max_tokens(32);
        let mut stream = model.generate_stream(prompt, &options).unwrap();
        assert_eq!(stream.finish_reason(), None);
        let mut text = String::new();
        for piece in &mut stream {
            let piece = piece.unwrap();
            assert!(!piece.is_empty());
            text += &piece;
        }
        assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
        let tokens = stream.tokens().to_vec();
        assert_eq!((text.clone(), tokens), generated(&ids, 32, &[]), "{prompt}");
        assert_eq!(model.generate(prompt, &options).unwrap(), text);
        let whole = case["text"].as_str().unwrap();
        // The weights have eight bits here, so later tokens may differ from the reference.
        assert!(text.starts_with(&whole[prompt.len()..][..8]), "{text:?}");
    }
}

#[test]
fn stop_strings_and_limits_end_a_stream() {
    let mut model = llama();
    let prompt = "fn main() {\n    let";
    let ids = model.tokenizer().encode(prompt, true).unwrap();
    for stop in ["\n", "\";\n", "el = \"", "missing text"] {
        let options = TextOptions::new().max_tokens(40).stop(stop);
        let (want, _) = generated(&ids, 40, &[stop.to_string()]);
        assert_eq!(model.generate(prompt, &options).unwrap(), want, "{stop:?}");
        assert!(!want.contains(stop));
    }
    let mut stream = model
        .generate_stream(prompt, &TextOptions::new().max_tokens(0))
        .unwrap();
    assert!(stream.next().is_none());
    assert_eq!(stream.finish_reason(), Some(FinishReason::Length));
    let first = generated(&ids, 1, &[]).1[0];
    let options = TextOptions::new().stop_token(first);
    let mut stream = model.generate_stream(prompt, &options).unwrap();
    assert!(stream.next().is_none());
    assert_eq!(stream.finish_reason(), Some(FinishReason::End));
    // The context holds the prompt and what follows.
    let options = LanguageModel::options().device(Device::cpu()).context(16);
    let mut model = options.open(data(LLAMA)).unwrap();
    let options = TextOptions::new().max_tokens(1000);
    let mut stream = model.generate_stream(prompt, &options).unwrap();
    assert!(stream.by_ref().all(|piece| piece.is_ok()));
    assert_eq!(stream.finish_reason(), Some(FinishReason::Context));
    assert_eq!(stream.tokens().len(), 16 - ids.len() + 1);
}

#[test]
fn an_abandoned_stream_leaves_the_model_usable() {
    let mut model = llama();
    let options = TextOptions::new().max_tokens(24);
    let want = llama().generate("A trait is", &options).unwrap();
    for pieces in [0, 1, 5] {
        let prompt = "The borrow checker";
        let mut stream = model.generate_stream(prompt, &options).unwrap();
        for _ in 0..pieces {
            stream.next().unwrap().unwrap();
        }
        drop(stream);
        assert_eq!(model.generate("A trait is", &options).unwrap(), want);
    }
    // After an error too.
    let long = "word ".repeat(1000);
    assert!(model.generate(&long, &options).is_err());
    assert_eq!(model.generate("A trait is", &options).unwrap(), want);
}

#[test]
fn conversations_use_the_template_and_the_cache() {
    let mut model = llama();
    let options = TextOptions::new().max_tokens(12);
    let mut messages = question("What is a trait?").to_vec();
    let answer = model.chat(&messages, &options).unwrap();
    let template = ChatTemplate::from_model(model.files(), model.tokenizer()).unwrap();
    let rendered = template
        .render(&messages, &TemplateValue::None, true)
        .unwrap();
    let ids = model
        .tokenizer()
        .encode_mixed(&rendered.text, &rendered.literal);
    assert_eq!(answer, generated(&ids.unwrap(), 12, &[]).0);
    messages.push(ChatMessage::new(Role::Assistant, &answer));
    messages.push(ChatMessage::new(Role::User, "And a struct?"));
    let second = model.chat(&messages, &options).unwrap();
    assert_eq!(second, llama().chat(&messages, &options).unwrap());
    // The first turn stays in the cache.
    let cached = model.generator_mut().cached().to_vec();
    assert_eq!(model.generator_mut().truncate_to_prefix(&cached[..5]), 4);
}

#[test]
fn a_copy_has_the_context_the_tokenizer_and_the_texts_of_the_first() {
    let mut model = llama();
    let fit = model.context_fit().unwrap().clone();
    let tokenizer = std::sync::Arc::new(model.files().tokenizer().unwrap());
    let options = LanguageModel::options()
        .device(Device::cpu())
        .context_fit(fit)
        .tokenizer(tokenizer);
    let mut copy = options.clone().open_files(model.files()).unwrap();
    assert_eq!((copy.context(), copy.vocab()), (model.context(), 2048));
    let asked = TextOptions::new().max_tokens(24);
    let want = model.generate("let x = 5;", &asked).unwrap();
    assert_eq!(copy.generate("let x = 5;", &asked).unwrap(), want);
    let graph = options.decoder_graph(model.files()).unwrap();
    assert_eq!(graph.outputs().len(), 2, "logits and the next token");
    let scores = LanguageModel::options()
        .device(Device::cpu())
        .device_sampling(None);
    let graph = scores.decoder_graph(model.files()).unwrap();
    assert_eq!(graph.outputs().len(), 1, "logits");
}

#[test]
fn tokens_go_on_past_the_context() {
    let options = LanguageModel::options().device(Device::cpu()).context(32);
    let mut model = options.chunk(8).open(data(LLAMA)).unwrap();
    let text = PromptText::new("Ownership is");
    let prompt = model.prompt_tokenizer().encode(text, &mut |_, _| true);
    let prompt = prompt.unwrap().unwrap();
    let limits = GenerateOptions {
        max_tokens: 60,
        stop: &[],
        eos: &[],
        spelled: &[],
    };
    let tokens = model.begin(&prompt).unwrap();
    assert_eq!(tokens, prompt);
    let mut full = 0;
    let written = model.generate_tokens(&tokens, &limits, &mut |_| true, &mut |prompts, text| {
        full += 1;
        assert_eq!(prompts.context(), 32);
        Some(text[text.len() - 10..].to_vec())
    });
    let written = written.unwrap();
    assert_eq!(
        (written.tokens.len(), written.finish),
        (60, FinishReason::Length)
    );
    assert!(full >= 2, "{full}");
    // Without room, the text ends.
    let tokens = model.begin(&prompt).unwrap();
    let ended = model.generate_tokens(&tokens, &limits, &mut |_| true, &mut |_, _| None);
    assert_eq!(ended.unwrap().finish, FinishReason::Context);
}

#[test]
fn the_image_encoder_can_be_left_out() {
    let path = data("vision-language/smolvlm-b");
    let options = LanguageModel::options().device(Device::cpu());
    assert!(options.clone().open(&path).unwrap().has_vision());
    assert!(!options.text_only().open(&path).unwrap().has_vision());
}

#[test]
fn a_seed_determines_the_text() {
    let mut model = llama();
    let options = |seed| {
        TextOptions::new()
            .max_tokens(16)
            .temperature(1.5)
            .seed(seed)
    };
    let mut texts = Vec::new();
    for seed in 0..4 {
        let text = model.generate("A trait is", &options(seed)).unwrap();
        assert_eq!(model.generate("A trait is", &options(seed)).unwrap(), text);
        texts.push(text);
    }
    texts.dedup();
    assert!(texts.len() > 1, "{texts:?}");
    let greedy = model
        .generate("A trait is", &TextOptions::new().max_tokens(16))
        .unwrap();
    let banned = model.tokenizer().encode(&greedy, false).unwrap()[0];
    let sampling = SamplingOptions {
        logit_bias: vec![(banned, f32::NEG_INFINITY)],
        ..SamplingOptions::default()
    };
    let options = TextOptions::new().max_tokens(16).sampling(sampling);
    assert_ne!(model.generate("A trait is", &options).unwrap(), greedy);
}

#[cfg(feature = "grammar")]
#[test]
fn a_grammar_applies_to_one_text() {
    let mut model = llama();
    let plain = TextOptions::new().max_tokens(8);
    let want = model.generate("A trait is", &plain).unwrap();
    let options = plain
        .clone()
        .grammar(Grammar::Regex("[0-9]{3}".to_string()));
    let text = model.generate("A trait is", &options).unwrap();
    assert!(
        text.len() == 3 && text.bytes().all(|c| c.is_ascii_digit()),
        "{text:?}"
    );
    // An abandoned constrained text leaves no constraint.
    drop(model.generate_stream("A trait is", &options).unwrap());
    assert_eq!(model.generate("A trait is", &plain).unwrap(), want);
    let bad = plain.grammar(Grammar::Regex("(".to_string()));
    let error = model.generate("A trait is", &bad).unwrap_err();
    assert!(
        matches!(error, Error::Model(ModelError::Constraint(_))),
        "{error:?}"
    );
}

#[test]
fn wrong_prompts_and_options_are_typed_errors() {
    let mut model = llama();
    let options = TextOptions::new();
    let long = "word ".repeat(1000);
    let error = model.generate(&long, &options).unwrap_err();
    assert!(
        matches!(error, Error::Model(ModelError::Context { .. })),
        "{error:?}"
    );
    let error = model
        .generate("a", &options.clone().stop_token(1 << 20))
        .unwrap_err();
    let want = ModelError::Token {
        token: 1 << 20,
        vocab: 2048,
    };
    assert_eq!(error.to_string(), want.to_string());
    for temperature in [f64::NAN, -1.0] {
        let error = model
            .generate("a", &options.clone().temperature(temperature))
            .unwrap_err();
        assert!(
            matches!(error, Error::Model(ModelError::Unsupported(_))),
            "{error:?}"
        );
    }
    let picture = Image::open(data("vision/pictures/wide.png")).unwrap();
    let seen = model.chat_stream_with_images(&question("What is it?"), &[picture], &options);
    let error = seen.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("vision-language"), "{error}");
    let adapter = |scale| LanguageModel::options().adapter("missing/adapter", scale);
    let opened = adapter(f64::NAN).open(data(LLAMA)).map(|_| ()).unwrap_err();
    assert!(
        opened.to_string().contains("not a finite number"),
        "{opened}"
    );
    let opened = adapter(1.0).open(data(LLAMA)).map(|_| ()).unwrap_err();
    assert!(matches!(opened, Error::Adapter(_)), "{opened:?}");
    let opened = LanguageModel::options()
        .context(usize::MAX / 4)
        .open(data(LLAMA))
        .map(|_| ());
    assert!(opened.unwrap_err().to_string().contains("to 1048576"));
}

#[test]
fn another_family_is_refused_with_the_type_that_runs_it() {
    let (bert, vision) = (data("encoders/bert-b"), data("vision/vit-a"));
    let (speech, llama) = (data("speech/whisper-a"), data(LLAMA));
    let told = |error: Error, family, remedy: &str| {
        let Error::OtherFamily { found, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*found, family);
        assert!(error.to_string().ends_with(remedy), "{error}");
    };
    let error = LanguageModel::open(&bert).map(|_| ()).unwrap_err();
    told(error, ModelFamily::Encoder, "`Embedder` or `Classifier`");
    let error = LanguageModel::open(&vision).map(|_| ()).unwrap_err();
    told(
        error,
        ModelFamily::Vision,
        "`ImageEmbedder` or `Classifier`",
    );
    let error = Embedder::open(&speech).map(|_| ()).unwrap_err();
    told(error, ModelFamily::Speech, "`Transcriber`");
    let error = ImageEmbedder::open(&bert).map(|_| ()).unwrap_err();
    told(error, ModelFamily::Encoder, "`Embedder` or `Classifier`");
    let error = Transcriber::open(&llama).map(|_| ()).unwrap_err();
    told(error, ModelFamily::Decoder, "`LanguageModel`");
    let error = Classifier::open(&llama).map(|_| ()).unwrap_err();
    told(error, ModelFamily::Decoder, "`LanguageModel`");
    let error = Classifier::open_with_labels(&bert, &["a"])
        .map(|_| ())
        .unwrap_err();
    told(error, ModelFamily::Encoder, "`Embedder` or `Classifier`");
    assert!(LanguageModel::open(data("missing/model")).is_err());
}

#[test]
fn an_encoder_decoder_answers_a_prompt() {
    let path = data("text-to-text/t5-a");
    let mut model = LanguageModel::options()
        .device(Device::cpu())
        .open(&path)
        .unwrap();
    let ids: Vec<u32> = model.tokenizer().encode("to be", true).unwrap();
    let options = TextOptions::new().max_tokens(6);
    let text = model.generate("to be", &options).unwrap();
    let files = ModelFiles::open(&path).unwrap();
    let graphs = files.seq2seq(tercet_models::Seq2SeqOptions::new).unwrap();
    let (mut source, mut generator) = graphs.compile(&Device::cpu()).unwrap();
    source.read(&ids, &mut generator).unwrap();
    let tokenizer = files.tokenizer().unwrap();
    let options = GenerateOptions {
        max_tokens: 6,
        stop: &[],
        eos: &end_ids(&graphs.spec.eos, &tokenizer),
        spelled: &[],
    };
    let start = [source.start()];
    let want = generate(&mut generator, &tokenizer, &start, &options, &mut |_| true).unwrap();
    let mut stream = model
        .generate_stream("to be", &TextOptions::new().max_tokens(6))
        .unwrap();
    assert!(stream.by_ref().all(|piece| piece.is_ok()));
    assert_eq!(stream.tokens(), want.tokens);
    assert_eq!(
        text,
        model
            .generate("to be", &TextOptions::new().max_tokens(6))
            .unwrap()
    );
    let error = model
        .chat(&question("Hi"), &TextOptions::new())
        .unwrap_err();
    assert!(error.to_string().contains("use `generate`"), "{error}");
}

#[test]
fn a_conversation_has_images() {
    let path = data("vision-language/idefics3-a");
    let mut model = LanguageModel::options()
        .device(Device::cpu())
        .open(path)
        .unwrap();
    let picture = Image::open(data("vision/pictures/wide.png")).unwrap();
    let other = Image::open(data("vision/pictures/tall.png")).unwrap();
    let messages = [ChatMessage::from_parts(Role::User, 1, "What is it?")];
    let options = TextOptions::new().max_tokens(6);
    let mut tokens = |image: &Image| {
        let images = std::slice::from_ref(image);
        let mut stream = model
            .chat_stream_with_images(&messages, images, &options)
            .unwrap();
        assert!(stream.by_ref().all(|piece| piece.is_ok()));
        stream.tokens().to_vec()
    };
    let first = tokens(&picture);
    tokens(&other);
    assert_eq!(tokens(&picture), first);
    let missing = model
        .chat_stream(&messages, &options)
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(missing, Error::Model(ModelError::Places { .. })),
        "{missing:?}"
    );
    let images = [picture, other];
    let many = model.chat_stream_with_images(&messages, &images, &options);
    assert!(many.map(|_| ()).unwrap_err().to_string().contains('2'));
    // Plain messages work too.
    assert!(model.chat(&question("Hi"), &options).is_ok());
}

#[test]
fn embedders_open_from_a_path() {
    let path = data("encoders/sentence-a");
    let texts = ["a cat", "a dog and a cat"];
    let files = ModelFiles::open(&path).unwrap();
    let mut parts = files
        .embedder(&Device::cpu(), &EncoderOptions::default())
        .unwrap();
    let options = EncoderOptions {
        dims: Some(4),
        ..EncoderOptions::default()
    };
    let mut short = Embedder::open_with(&path, &Device::cpu(), &options).unwrap();
    let want = parts.embed_with_progress(&texts, &mut |_| true).unwrap();
    assert_eq!(parts.embed(&texts).unwrap(), want);
    assert_eq!(short.embed(&texts).unwrap()[0].len(), 4);
    let stopped = parts
        .embed_with_progress(&[texts[0]; 100], &mut |_| false)
        .unwrap();
    assert!(stopped.iter().any(Vec::is_empty) && !stopped.iter().all(Vec::is_empty));
    assert!(parts.embed::<&str>(&[]).unwrap().is_empty());
}

#[test]
fn classifiers_take_texts_or_images() {
    let (device, options) = (Device::cpu(), EncoderOptions::default());
    let files = ModelFiles::open(data("encoders/reranker-a")).unwrap();
    let mut classifier = Classifier::from_files(&files, &device, &options).unwrap();
    let found = classifier.classify(&["a cat", "a dog"]).unwrap();
    let want = files
        .classifier(&device, &options)
        .unwrap()
        .classify(&["a cat", "a dog"])
        .unwrap();
    for (found, want) in found.iter().zip(&want) {
        assert_eq!(&found.scores, want);
        let best = want.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(found.score, best);
        let at = classifier
            .labels()
            .iter()
            .position(|label| *label == found.label)
            .unwrap();
        assert_eq!(want[at], best);
    }
    assert!(!classifier.is_of_images() && found.len() == 2);
    let picture = data("vision/pictures/wide.png");
    let image = Image::open(&picture).unwrap();
    assert!(
        classifier
            .classify_images(std::slice::from_ref(&image))
            .is_err()
    );

    let json = reference("vision/vit-a/reference.json");
    let files = ModelFiles::open(data("vision/vit-a")).unwrap();
    let mut classifier = Classifier::from_files(&files, &device, &options).unwrap();
    let path = picture.to_str().unwrap();
    let found = classifier.classify(&[path]).unwrap();
    let logits: Vec<f64> = json["logits"][0]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    let best = (0..logits.len())
        .max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
        .unwrap();
    assert_eq!(json["pictures"][0], "wide.png");
    assert_eq!(found[0].label, classifier.labels()[best]);
    assert_eq!(classifier.classify_images(&[image]).unwrap(), found);
    let missing = classifier.classify(&["missing/picture.png"]).unwrap_err();
    assert!(matches!(missing, Error::Image(_)), "{missing:?}");
}

#[test]
fn labels_describe_classes_of_images() {
    let (device, options) = (Device::cpu(), EncoderOptions::default());
    let files = ModelFiles::open(data("vision/clip-a")).unwrap();
    let labels = ["a cat", "a dog", "the sea"];
    let mut classifier =
        Classifier::from_files_with_labels(&files, &device, &options, &labels).unwrap();
    let paths = ["wide.png", "tall.png"].map(|name| data("vision/pictures").join(name));
    let paths = paths.map(|path| path.display().to_string());
    let found = classifier.classify(&paths).unwrap();
    let rows = files
        .image_embedder(&device, &options)
        .unwrap()
        .embed_files(&paths)
        .unwrap();
    let texts = files
        .embedder(&device, &options)
        .unwrap()
        .embed(&labels)
        .unwrap();
    let head = files.similarity_head().unwrap();
    for (found, row) in found.iter().zip(&rows) {
        assert_eq!(found.scores, head.scores(row, &texts));
    }
    let none = Classifier::from_files_with_labels::<&str>(&files, &device, &options, &[]);
    assert!(
        none.map(|_| ())
            .unwrap_err()
            .to_string()
            .contains("description of each class")
    );
    let files = ModelFiles::open(data("vision/vit-a")).unwrap();
    assert!(Classifier::from_files_with_labels(&files, &device, &options, &labels).is_err());
    let files = ModelFiles::open(data("encoders/tagger-a")).unwrap();
    let tagger = Classifier::from_files(&files, &device, &options)
        .map(|_| ())
        .unwrap_err();
    assert!(
        tagger.to_string().contains("TextClassifier::entities"),
        "{tagger}"
    );
}

#[test]
fn recordings_are_transcribed_as_by_the_recognizer() {
    for model in ["speech/whisper-a", "speech/moonshine-a"] {
        let files = ModelFiles::open(data(model)).unwrap();
        let mut transcriber = Transcriber::from_files(&files, &Device::cpu()).unwrap();
        let wave: Vec<f32> = (0..SAMPLE_RATE)
            .map(|i| (i as f32 * 0.05).sin() * 0.1)
            .collect();
        let options = SpeechOptions {
            language: transcriber
                .recognizer_mut()
                .tokens()
                .map(|_| "en".to_string()),
            ..SpeechOptions::default()
        };
        let mut bad = wave.clone();
        bad[7] = f32::NAN;
        let error = transcriber.transcribe_samples(&bad, &options).unwrap_err();
        assert!(matches!(error, Error::Speech(_)), "{error:?}");
        assert!(transcriber.transcribe_samples(&[], &options).is_err());
        // Audio of a failed call is not part of the next transcript.
        let found = transcriber.transcribe_samples(&wave, &options).unwrap();
        let mut recognizer = files.recognizer(&Device::cpu()).unwrap();
        recognizer.push(&wave).unwrap();
        let want = recognizer.finish(&options, &mut |_| true).unwrap();
        assert_eq!((found.text(), found.seconds), (want.text(), 1.0));
        #[cfg(feature = "audio")]
        {
            let spoken = data("speech/speech.flac");
            let text = transcriber.transcribe(&spoken).unwrap().text();
            let options = transcriber.default_options();
            assert_eq!(
                text,
                transcriber
                    .transcribe_with(&spoken, &options)
                    .unwrap()
                    .text()
            );
            let error = transcriber.transcribe("missing/recording.wav").unwrap_err();
            assert!(matches!(error, Error::Audio(_)), "{error:?}");
        }
    }
}
