// The page works without this file. With it the time to wait runs down, the
// button rests meanwhile, and the password can be shown.
"use strict";

const password = document.getElementById("password");
const show = document.getElementById("show");
show.hidden = false;
show.addEventListener("click", () => {
  const visible = password.type === "password";
  password.type = visible ? "text" : "password";
  show.textContent = visible ? "Hide" : "Show";
  show.setAttribute("aria-pressed", String(visible));
  password.focus();
});

const form = document.getElementById("login");
form.addEventListener("submit", () => { password.type = "password"; });

const countdown = document.getElementById("countdown");
if (countdown) {
  const submit = document.getElementById("submit");
  const end = Date.now() + 1000 * Number(countdown.dataset.seconds);
  const two = (n) => String(n).padStart(2, "0");
  const words = (s) => {
    const clock = two(Math.floor(s / 60) % 60) + ":" + two(s % 60);
    return s < 3600 ? clock : Math.floor(s / 3600) + ":" + clock;
  };
  // Somebody else may sign in meanwhile.
  const name = document.getElementById("name");
  const blocked = name.value;
  let over = false;
  const rest = () => { submit.disabled = !over && name.value === blocked; };
  name.addEventListener("input", rest);
  let timer;
  const tick = () => {
    const left = Math.ceil((end - Date.now()) / 1000);
    if (left > 0) {
      countdown.textContent = words(left);
      return;
    }
    clearInterval(timer);
    over = true;
    rest();
    document.getElementById("problem").hidden = true;
    const again = document.getElementById("again");
    again.hidden = false;
    again.textContent = "You can try again now.";
    document.title = document.title.replace("Please wait", "Sign in");
    password.focus();
  };
  rest();
  timer = setInterval(tick, 250);
  tick();
}
