//! How does a reqwest client retry?
//!
//! ```no_run
//! use retrysafe::client::{Retries, reqwest as safe};
//!
//! # async fn pay() -> Result<(), Box<dyn std::error::Error>> {
//! let client = safe::client(reqwest::Client::builder(), Retries::default())?;
//! match client.post("https://api.example.com/payments").body("{}").send().await {
//!     Ok(answer) => println!("{}", answer.status()),
//!     Err(error) => match safe::ended(&error) {
//!         Some(end) if end.may_have_run() => println!("it may have happened: {end}"),
//!         _ => println!("{error}"),
//!     },
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Redirects
//!
//! A key tells another origin nothing that it should know, and a request repeated there is another
//! request. reqwest's own policy would take the key along, so [`client`] sets the policy by itself:
//! a request with a key is followed within its origin only, and only through 307 and 308, which
//! repeat it as it is. Every other redirect of a keyed request is its answer. Requests without a
//! key follow up to ten redirects, as usual.

use std::sync::Mutex;

use ::reqwest::{Body, Client, ClientBuilder, Request, Response, ResponseBuilderExt, redirect};
use async_trait::async_trait;
use bytes::Bytes;
use http::{Extensions, HeaderMap};
use reqwest_middleware::{ClientWithMiddleware, Middleware, Next};

use super::call::Ready;
use super::error::{BoxError, Error, Refused};
use super::journal::Pending;
use super::loss::Loss;
use super::settings::Retries;
use super::transport::Transport;

/// As many as reqwest follows by itself.
const REDIRECTS_MAX: usize = 10;

tokio::task_local! {
    /// Whether the request being sent by this task has a key; the redirect policy cannot see it.
    static IS_KEYED: bool;
}

/// A reqwest client that retries.
///
/// It takes the builder because two things have to be set on it: redirects, as described
/// [above](self), and reqwest's own retries, which would be attempts that nobody counts. More
/// middleware can be put inside it with [`reqwest_middleware::ClientBuilder::from_client`].
///
/// # Errors
///
/// reqwest's own, from building its client.
pub fn client(builder: ClientBuilder, retries: Retries) -> ::reqwest::Result<ClientWithMiddleware> {
    let client: Client = builder.redirect(redirects()).retry(::reqwest::retry::never()).build()?;
    Ok(reqwest_middleware::ClientBuilder::new(client).with(Retrying { retries }).build())
}

/// Finishes a call that another process has begun, with the same key; `client` is one that
/// [`client`] has made. `supplied` replaces headers, and brings those that were not journalled.
///
/// # Errors
///
/// The middleware's; [`ended`] tells ours.
pub async fn resume(
    client: &ClientWithMiddleware,
    pending: Pending,
    supplied: HeaderMap,
) -> reqwest_middleware::Result<Response> {
    let request = Request::try_from(pending.request().clone())?;
    let mut extensions = Extensions::new();
    extensions.insert(std::sync::Arc::new(Mutex::new(Some(Resumed { pending, supplied }))));
    client.execute_with_extensions(request, &mut extensions).await
}

/// How the call ended, if the error is ours.
pub fn ended(error: &reqwest_middleware::Error) -> Option<&Error> {
    match error {
        reqwest_middleware::Error::Middleware(error) => error.downcast_ref(),
        reqwest_middleware::Error::Reqwest(_) => None,
    }
}

/// A call from the journal on its way into the middleware. Extensions have to be `Clone`; this is
/// taken out once.
struct Resumed {
    pending: Pending,
    supplied: HeaderMap,
}

type ResumedOnce = std::sync::Arc<Mutex<Option<Resumed>>>;

struct Retrying {
    retries: Retries,
}

#[async_trait]
impl Middleware for Retrying {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let resumed = extensions
            .remove::<ResumedOnce>()
            .and_then(|once| once.lock().ok().and_then(|mut once| once.take()));
        let ready = match resumed {
            Some(Resumed { pending, supplied }) => Ready::resume(pending, supplied, &self.retries),
            None => {
                let request: http::Request<Body> = request.try_into().map_err(|error| {
                    let error: ::reqwest::Error = error;
                    ours(Error::Refused(Refused::Unsendable(error.into())))
                })?;
                Ready::begin(request, &self.retries).await
            }
        };
        let stack = Stack { next, extensions };
        let answer = ready.map_err(ours)?.run(stack, &self.retries).await.map_err(ours)?;
        Ok(answer.map(Body::wrap).into())
    }
}

fn ours(error: Error) -> reqwest_middleware::Error {
    reqwest_middleware::Error::middleware(error)
}

/// The rest of the middleware, and reqwest itself, as a transport.
struct Stack<'a> {
    next: Next<'a>,
    extensions: &'a mut Extensions,
}

impl Transport for Stack<'_> {
    type Body = Body;

    async fn send(
        &mut self,
        request: http::Request<Bytes>,
        retries: &Retries,
    ) -> Result<http::Response<Body>, (Loss, BoxError)> {
        let is_keyed = request.headers().contains_key(&retries.key_header);
        let request = Request::try_from(request).map_err(|e| (Loss::Unsendable, e.into()))?;
        let sent = self.next.clone().run(request, self.extensions);
        let answer = IS_KEYED.scope(is_keyed, sent).await.map_err(|error| {
            let error: BoxError = match error {
                reqwest_middleware::Error::Reqwest(error) => error.into(),
                reqwest_middleware::Error::Middleware(error) => error.into(),
            };
            (retries.loss(error.as_ref()), error)
        })?;
        Ok(with_url(answer))
    }
}

/// The answer as `http` knows it. The URL it came from is kept where reqwest looks for it.
fn with_url(answer: Response) -> http::Response<Body> {
    let url = http::Response::builder().url(answer.url().clone()).body(());
    let mut answer: http::Response<Body> = answer.into();
    if let Ok(url) = url {
        answer.extensions_mut().extend(url.into_parts().0.extensions);
    }
    answer
}

fn redirects() -> redirect::Policy {
    redirect::Policy::custom(|attempt| {
        // Outside of the task that we started nobody can tell, so it might.
        if !IS_KEYED.try_with(|is_keyed| *is_keyed).unwrap_or(true) {
            return redirect::Policy::limited(REDIRECTS_MAX).redirect(attempt);
        }
        let repeats = matches!(attempt.status().as_u16(), 307 | 308);
        let stays = attempt.previous().last().is_some_and(|from| {
            let to = attempt.url();
            (from.scheme(), from.host_str(), from.port_or_known_default())
                == (to.scheme(), to.host_str(), to.port_or_known_default())
        });
        if repeats && stays && attempt.previous().len() <= REDIRECTS_MAX {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}
