//! Tests of running ahead: runs that start before their input token is known to the host.

use tercet::Device;

use super::{CheckResult, Coverage, demo, fail, prompts};

/// Text generated with and without running ahead is equal, for greedy decoding and sampling. If the
/// caller continues with another token than the chosen one, the run ahead and its random number are
/// discarded.
pub(super) fn ahead(share: Coverage, device: &Device) -> CheckResult {
    let p = &prompts()?[1];
    for temperature in share.select(vec![1.0, 0.0], 1) {
        let make = || {
            demo("model.safetensors", device, |o| {
                o.context = p.ids.len() + 48;
                let sampling = o.sampling.get_or_insert(tercet_models::Sampling::GREEDY);
                (sampling.temperature, sampling.top_k, sampling.seed) = (temperature, 50, 3);
            })
        };
        let (mut plain, mut ahead) = (make()?, make()?);
        plain.generator.skip_logits();
        ahead.generator.skip_logits();
        ahead.generator.run_ahead();
        let (mut texts, mut has_logits) = ([Vec::new(), Vec::new()], Vec::new());
        for (text, demo) in texts.iter_mut().zip([&mut plain, &mut ahead]) {
            let generator = &mut demo.generator;
            let mut next = generator.forward(&p.ids)?.next;
            for at in 0..40 {
                let chosen = next.ok_or("the graph does not sample")?;
                text.push(chosen);
                if at == 3 {
                    has_logits.push(generator.logits().is_ok());
                }
                next = match at {
                    // The following steps interrupt the runs ahead: another token than the chosen
                    // one, several tokens, a truncation, another seed, and a reset.
                    7 => generator.forward(&[chosen + 1])?.next,
                    13 => generator.forward(&[chosen, 5, 6])?.next,
                    19 => {
                        let position = generator.position();
                        generator.truncate(position - 3);
                        generator.forward(&[chosen])?.next
                    }
                    25 => {
                        generator.set_seed(11);
                        generator.forward(&[chosen])?.next
                    }
                    31 => {
                        generator.reset();
                        generator.forward(&[chosen])?.next
                    }
                    _ => generator.forward(&[chosen])?.next,
                };
            }
            // Generate up to the end of the cache, but not beyond it.
            while generator.position() < generator.context() {
                let chosen = next.ok_or("the graph does not sample")?;
                text.push(chosen);
                next = generator.forward(&[chosen])?.next;
            }
            if generator.forward(&[1]).is_ok() {
                return fail("fed beyond the context".to_string());
            }
        }
        // On devices that run ahead, the next run has overwritten the logits.
        let is_host = matches!(device.name(), "cpu" | "reference");
        if has_logits != [true, is_host] {
            return fail(format!("logits: {has_logits:?}"));
        }
        let [plain, ahead] = texts;
        if plain != ahead {
            return fail(format!(
                "temperature {temperature}: {plain:?}, ahead {ahead:?}"
            ));
        }
    }
    Ok(())
}
