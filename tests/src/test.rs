//! A test as data: its name, its condition and its function.

use std::error::Error;

use libtest_mimic::Failed;
use tercet::Device;

use crate::TestExecutor;

/// A test. If the test needs an executor, its name ends in the executor's name:
/// `parity/softmax/odd_rows_7x33/f32/vulkan`.
pub struct SuiteTest {
    name: String,
    ignored: Option<String>,
    run: TestFn,
}

/// The function of a test.
pub(crate) type TestFn = Box<dyn FnOnce() -> Result<(), Failed> + Send>;

impl std::fmt::Debug for SuiteTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SuiteTest { name, ignored, .. } = self;
        let mut test = f.debug_struct("Test");
        test.field("name", name).field("ignored", ignored);
        test.finish_non_exhaustive()
    }
}

impl SuiteTest {
    /// A test that returns a failure message.
    pub fn new(
        name: impl Into<String>,
        run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
    ) -> SuiteTest {
        SuiteTest {
            name: name.into(),
            ignored: None,
            run: Box::new(run),
        }
    }

    /// A test that panics on failure.
    pub fn asserting(name: &str, run: fn()) -> SuiteTest {
        SuiteTest::new(name, move || {
            run();
            Ok(())
        })
    }

    /// A test that panics or returns an error on failure.
    pub fn fallible(
        name: &str,
        run: impl FnOnce() -> Result<(), Box<dyn Error>> + Send + 'static,
    ) -> SuiteTest {
        SuiteTest::new(name, move || {
            run().map_err(|e| tercet::one_line(&*e).into())
        })
    }

    /// A test on an executor. The test is ignored if the executor is missing, unless
    /// `TERCET_REQUIRE` names the executor.
    pub fn on(
        executor: &'static TestExecutor,
        name: String,
        run: impl FnOnce(&Device) -> Result<(), Failed> + Send + 'static,
    ) -> SuiteTest {
        SuiteTest::variant_on(executor, name, "", run)
    }

    /// As [`SuiteTest::on`], with a suffix after the name of the executor.
    pub fn variant_on(
        executor: &'static TestExecutor,
        name: String,
        variant: &str,
        run: impl FnOnce(&Device) -> Result<(), Failed> + Send + 'static,
    ) -> SuiteTest {
        let missing = executor.device().err().filter(|_| !executor.is_required());
        SuiteTest {
            name: format!("{name}/{}{variant}", executor.name),
            ignored: missing,
            run: Box::new(move || run(executor.device()?)),
        }
    }

    /// The same test, marked as ignored with the reason.
    #[must_use]
    pub fn ignored(self, why: &str) -> SuiteTest {
        SuiteTest {
            ignored: Some(why.to_string()),
            ..self
        }
    }

    /// The name of the test.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name, the reason if it is ignored, and the function.
    pub(crate) fn into_parts(self) -> (String, Option<String>, TestFn) {
        (self.name, self.ignored, self.run)
    }
}
