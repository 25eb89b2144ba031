//! What does it look like when it works? The main job in one command, with nothing installed.
//!
//! A small payments API with a flaky provider, and a crowd of customers who retry, double-click and
//! lose their connections. First the crowd talks to the API itself; then through the gateway on its
//! embedded store, which is killed in mid-traffic. At the end the ledgers stand side by side.

mod crowd;
mod gateway;
mod ledger;
mod shop;

use std::process::ExitCode;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crowd::Crowd;
use gateway::Gateway;
use ledger::Ledger;
use shop::Shop;

use crate::output::{complain, say};

/// Shows the main job: payments with a flaky provider, unprotected and protected.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// End after the ledgers instead of staying up
    #[arg(long)]
    once: bool,
    /// Repeat a run
    #[arg(long)]
    seed: Option<u64>,
    /// How many payments the customers ask for
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=5000))]
    payments: u32,
}

impl Demo {
    /// Runs the demo and says how the program ends.
    pub(crate) async fn run(self) -> ExitCode {
        // Dropping the show kills the gateway and removes its folder, wherever it was.
        let ended = tokio::select! {
            // The show itself ends by a signal when it is only staying up.
            biased;
            ended = self.show() => ended,
            () = told_to_end() => Err("interrupted".into()),
        };
        match ended {
            Ok(code) => code,
            Err(error) => {
                complain(&format!("retrysafe demo: {error}"));
                ExitCode::from(2)
            }
        }
    }

    async fn show(&self) -> Result<ExitCode, String> {
        let seed = self.seed.unwrap_or_else(|| getrandom::u64().unwrap_or(1) % 1_000_000);
        say(&format!(
            "A payments API whose provider drops answers, stalls and fails; {} customers who\n\
             retry, double-click and hang up. (--seed {seed} repeats this run.)\n",
            self.payments
        ));

        let shop = Shop::open(seed).await?;
        let crowd = Crowd { seed, payments: self.payments };
        let told = crowd.unprotected(shop.address()).await;
        let bare = Ledger::of(&shop.close(), &told);

        let shop = Shop::open(seed).await?;
        let mut gateway = Gateway::start(shop.address()).await?;
        let told = crowd.protected(&mut gateway).await?;
        let safe = Ledger::of(&shop.charges(), &told);
        let kills = gateway.kills();
        shop.calm_down();

        say(&format!("\n{}", Ledger::side_by_side(&bare, &safe)));
        let times = if kills == 1 { "once".to_owned() } else { format!("{kills} times") };
        say(&format!("The gateway was killed (SIGKILL) {times} during the protected run."));
        let is_kept = safe.doubles == 0 && safe.lost == 0 && safe.differing == 0 && kills > 0;
        if self.once {
            return Ok(if is_kept { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        say(
            "\nIt is still up, and its provider makes no more faults. Try it (the second line replays, the third is refused):\n",
        );
        say(&gateway.curl_lines());
        say(&format!("the gateway    http://{}", gateway.address()));
        say(&format!(
            "the API        http://{}   (its upstream: what reaches it without the gateway is not protected)",
            shop.address()
        ));
        say(&format!("the operators  {}", gateway.admin_line()));
        say(&format!("the dashboard  {}", gateway.dashboard_line()));
        say("\nCtrl-C ends the demo.");
        // The only way on from here is a signal, and that is the way it should end.
        told_to_end().await;
        Ok(ExitCode::SUCCESS)
    }
}

/// Waits until somebody ends the demo: Ctrl-C, or a signal to terminate.
async fn told_to_end() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        },
        // Without a handler the system ends the program, at the cost of a folder left behind.
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}
