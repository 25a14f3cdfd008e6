//! A test as data: a name, whether it can run here, and what it does.

use std::error::Error;

use libtest_mimic::Failed;
use tercet::Device;

use crate::TestExecutor;

/// One test. Those that need an executor end in its name: `parity/softmax/odd_rows_7x33/f32/vulkan`.
pub struct SuiteTest {
    name: String,
    ignored: Option<String>,
    run: TestFn,
}

/// What a test does.
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
    /// A test that says what is wrong.
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

    /// A test that panics where something is wrong.
    pub fn asserting(name: &str, run: fn()) -> SuiteTest {
        SuiteTest::new(name, move || {
            run();
            Ok(())
        })
    }

    /// A test that panics, or ends with an error.
    pub fn fallible(
        name: &str,
        run: impl FnOnce() -> Result<(), Box<dyn Error>> + Send + 'static,
    ) -> SuiteTest {
        SuiteTest::new(name, move || {
            run().map_err(|e| tercet::one_line(&*e).into())
        })
    }

    /// A test of an executor: ignored where the machine lacks it, unless `TERCET_REQUIRE` names it.
    pub fn on(
        executor: &'static TestExecutor,
        name: String,
        run: impl FnOnce(&Device) -> Result<(), Failed> + Send + 'static,
    ) -> SuiteTest {
        SuiteTest::variant_on(executor, name, "", run)
    }

    /// [`Test::on`] with something after the name of the executor.
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

    /// The same test, not run, with the reason.
    #[must_use]
    pub fn ignored(self, why: &str) -> SuiteTest {
        SuiteTest {
            ignored: Some(why.to_string()),
            ..self
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name, why it is ignored, and what it does.
    pub(crate) fn into_parts(self) -> (String, Option<String>, TestFn) {
        (self.name, self.ignored, self.run)
    }
}
