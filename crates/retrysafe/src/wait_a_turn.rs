//! How does a task let others run first who are ready to?
//!
//! Not by `tokio::task::yield_now`: that sets the task aside for the thread that it runs on, and if the next task blocks the thread, no other
//! thread can take it over.

use std::future::poll_fn;
use std::task::Poll;

/// Goes to the end of the queue of what is ready to run, and comes back from there.
pub(crate) async fn wait_a_turn() {
    let mut has_waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn who_is_ready_runs_first() {
        let (tell, told) = mpsc::channel();
        let ready = tokio::spawn(async move { tell.send("ready").unwrap() });
        wait_a_turn().await;
        assert_eq!(told.try_recv(), Ok("ready"));
        ready.await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_waits_is_not_held_up_by_a_task_that_blocks_its_thread() {
        let waiting = tokio::spawn(async {
            let (tell, told) = mpsc::channel();
            let blocking = tokio::spawn(async move { told.recv_timeout(PATIENCE) });
            wait_a_turn().await;
            // The other one may have given up.
            let _ = tell.send(());
            blocking.await.unwrap()
        });
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }
}
